//! Redis and memcached.

use crate::lane::{Beside, End, Program, ask, ask_locally};

#[test]
fn redis() {
    Program {
        name: "redis-server",
        package: "redis-server",
        needs: &["redis-server", "redis-benchmark"],
        files: &[],
        server: "redis-server --port 6379 --protected-mode no --dir $DIR --save '' --appendonly yes \
                 --unixsocket $DIR/redis.sock --repl-diskless-sync-delay 0",
        beside: &[Beside {
            at: End::Client,
            listens: "10.99.0.1/6380",
            server: "redis-server --port 6380 --protected-mode no --dir $DIR --save '' --repl-diskless-sync-delay 0",
        }],
        ports: &[6379],
        asks: &[
            ask(
                "redis-benchmark, all its tests, 50 clients",
                "redis-benchmark -h $SERVER -n 1000 -q | tr '\\r' '\\n' | sed -n 's/: [^ ]* requests per second.*//p'",
            ),
            ask(
                "the same with 16 requests on the way",
                "redis-benchmark -h $SERVER -n 1000 -P 16 -t get,set,lpush,lrange_300,mset -q | tr '\\r' '\\n' \
                 | sed -n 's/: [^ ]* requests per second.*//p'",
            ),
            ask(
                "redis-cli scripts: types, transactions, Lua, a value of 4 MB, errors",
                "redis-cli -h $SERVER <<'END'
flushall
set a 1
incrby a 41
append a x
rpush l 1 2 3
lrange l 0 -1
hset h f v g w
hgetall h
zadd z 1 one 2 two
zrange z 0 -1 withscores
multi
set t 1
incr t
exec
eval \"return {KEYS[1], redis.call('get', 'a')}\" 1 k
lpush a 1
nosuch
type h
END
                 seq 600000 | redis-cli -h $SERVER -x set big; redis-cli -h $SERVER strlen big
                 redis-cli -h $SERVER get big | md5sum; seq 1000 | sed 's/.*/set k& v&/' | redis-cli -h $SERVER | sort | uniq -c
                 redis-cli -h $SERVER dbsize",
            ),
            ask(
                "blocking pop and publish to clients that wait",
                "redis-cli -h $SERVER blpop queue 30 >$DIR/popped & popping=$!
                 timeout 30 redis-cli -h $SERVER subscribe news >$DIR/news & news=$!
                 until redis-cli -h $SERVER info clients | grep -q blocked_clients:1; do :; done
                 until [ $(redis-cli -h $SERVER publish news hello) = 1 ]; do :; done
                 redis-cli -h $SERVER lpush queue x >/dev/null; wait $popping; cat $DIR/popped
                 until grep -q hello $DIR/news; do :; done; kill $news; head -6 $DIR/news",
            ),
            ask(
                "BGSAVE and BGREWRITEAOF while clients are served",
                "over() { until redis-cli -h $SERVER info persistence | tr -d '\\r' | grep -qx \"$1:0\"; do sleep 0.05; done; }
                 over aof_rewrite_in_progress
                 redis-benchmark -h $SERVER -n 20000 -t set,get -r 1000 -q >$DIR/load & load=$!
                 redis-cli -h $SERVER bgsave; over rdb_bgsave_in_progress
                 redis-cli -h $SERVER bgrewriteaof | cut -c1-10; over aof_rewrite_scheduled; over aof_rewrite_in_progress; wait $load
                 redis-cli -h $SERVER info persistence | tr -d '\\r' | grep -E 'rdb_last_bgsave_status|aof_last_bgrewrite_status'
                 tr '\\r' '\\n' <$DIR/load | sed -n 's/: [^ ]* requests per second.*//p'; redis-cli -h $SERVER ping",
            ),
            ask(
                "a replica on Linux, then of a master on Linux",
                "up() { until redis-cli -h $1 -p $2 info replication | grep -q master_link_status:up; do sleep 0.05; done; }
                 redis-cli -h $CLIENT -p 6380 replicaof $SERVER 6379; up $CLIENT 6380
                 redis-cli -h $SERVER set from tidewall; redis-cli -h $SERVER wait 1 5000
                 redis-cli -h $CLIENT -p 6380 get from; redis-cli -h $CLIENT -p 6380 get big | md5sum
                 redis-cli -h $CLIENT -p 6380 replicaof no one; redis-cli -h $SERVER replicaof $CLIENT 6380; up $SERVER 6379
                 redis-cli -h $CLIENT -p 6380 set from linux; redis-cli -h $CLIENT -p 6380 wait 1 5000
                 redis-cli -h $SERVER get from; redis-cli -h $SERVER get big | md5sum; redis-cli -h $SERVER replicaof no one",
            ),
            ask_locally(
                "loopback and AF_UNIX beside",
                "redis-cli -h 127.0.0.1 get from; redis-cli -s $DIR/redis.sock get from; redis-cli -s $DIR/redis.sock ping",
            ),
        ],
        takes: &["0.0.0.0:6379"],
        lacks: "",
    }
    .check();
}

/// Those of Redis' own tests that use a running server (scripts/redis-tests.sh lists
/// them), without the slow ones and those that fail on the kernel as well. The output
/// keeps which passed, and everything of those that failed.
const OWN_TESTS: &str = "
    cp -r /var/cache/tidewall/redis $DIR/suite && cd $DIR/suite
    for unit in pubsub quit multi tracking keyspace slowlog type/stream-cgroups; do
        units=\"$units --single unit/$unit\"
    done
    ./runtest --host $SERVER --port 6379 --clients 1 --tags '-slow -needs:repl -cluster' $units >$DIR/own 2>&1 || code=$?
    sed 's/\x1b\\[[0-9;]*m//g' $DIR/own >$DIR/plain
    sed -n 's/^\\(\\[ok\\]: .*\\) ([0-9]* ms)$/\\1/p' $DIR/plain
    [ -z \"$code\" ] || { cat $DIR/plain; exit 1; }";

#[test]
fn redis_tests_itself() {
    Program {
        name: "redis-server, by its own tests",
        package: "redis-server",
        needs: &["redis-server", "tclsh", "/var/cache/tidewall/redis/runtest"],
        files: &[],
        server: "redis-server --port 6379 --protected-mode no --dir $DIR --save '' --enable-debug-command yes",
        beside: &[],
        ports: &[6379],
        asks: &[ask(
            "the units pubsub, quit, multi, tracking, keyspace, slowlog, stream-cgroups",
            OWN_TESTS,
        )],
        takes: &["0.0.0.0:6379"],
        lacks: "",
    }
    .check();
}

#[test]
fn memcached() {
    Program {
        name: "memcached",
        package: "memcached",
        needs: &["memcached", "python3"],
        files: &[("load.py", include_str!("load.py"))],
        server: "memcached -u root -t 4 -p 11211 -U 11211 -l 0.0.0.0",
        beside: &[],
        ports: &[11211],
        asks: &[
            ask(
                "text protocol: set, get, cas, incr, a value of 500 KB, errors",
                "exec 3<>/dev/tcp/$SERVER/11211
                 printf 'set a 0 0 1\\r\\n1\\r\\nget a\\r\\nincr a 41\\r\\nappend a 0 0 1\\r\\nx\\r\\ngets a\\r\\nnosuch\\r\\ndelete a\\r\\nget a\\r\\n' >&3
                 (printf 'set big 0 0 500000\\r\\n'; head -c 500000 /dev/zero | tr '\\0' b; printf '\\r\\nget big\\r\\nquit\\r\\n') >&3
                 cat <&3 | md5sum",
            ),
            ask(
                "40 connections over 4 threads, each reading what it wrote",
                "python3 $DIR/load.py tcp $SERVER 40 200",
            ),
            ask("UDP", "python3 $DIR/load.py udp $SERVER 4 200"),
            ask_locally("loopback beside", "python3 $DIR/load.py tcp 127.0.0.1 4 50"),
        ],
        takes: &["0.0.0.0:11211"],
        lacks: "",
    }
    .check();
}
