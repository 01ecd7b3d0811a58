//! The treatment of each RESP command. Each member of an ensemble holds part of the keys.
//! So a command goes to one member by its only key, is split by key, is answered here, or
//! is rejected.

use tidewall_wire::resp::{among, arguments};

/// The treatment of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// It goes to the member of its key unchanged.
    Whole,
    /// These commands, each with one key, and how to merge their replies.
    Parts(Merge, Vec<Vec<u8>>),
    /// It is answered here, with this reply.
    Answer(Vec<u8>),
    /// It is answered here, and the connection ends after the reply.
    Quit(Vec<u8>),
}

/// How replies become one. If any is an error, the first error is the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// There is one reply, passed on as it arrives.
    One,
    /// Arrays of one element each become an array of all elements.
    Arrays,
    /// Integers become their sum.
    Sum,
    /// The first reply stands for all.
    Same,
}

/// Commands of Redis 7 whose only key is their first argument. For EVAL and its like it
/// is the third, for OBJECT and its like the second; `tidewall_wire::resp::key` knows.
#[rustfmt::skip]
const ONE_KEY: &[&str] = &[
    "APPEND", "BITCOUNT", "BITFIELD", "BITFIELD_RO", "BITPOS", "DECR", "DECRBY", "DUMP",
    "EXPIRE", "EXPIREAT", "EXPIRETIME", "GEOADD", "GEODIST", "GEOHASH", "GEOPOS",
    "GEORADIUS_RO", "GEORADIUSBYMEMBER_RO", "GEOSEARCH", "GET", "GETBIT", "GETDEL", "GETEX",
    "GETRANGE", "GETSET", "HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HINCRBYFLOAT",
    "HKEYS", "HLEN", "HMGET", "HMSET", "HRANDFIELD", "HSCAN", "HSET", "HSETNX", "HSTRLEN",
    "HVALS", "INCR", "INCRBY", "INCRBYFLOAT", "LINDEX", "LINSERT", "LLEN", "LPOP", "LPOS",
    "LPUSH", "LPUSHX", "LRANGE", "LREM", "LSET", "LTRIM", "PERSIST", "PEXPIRE", "PEXPIREAT",
    "PEXPIRETIME", "PFADD", "PSETEX", "PTTL", "RESTORE", "RPOP", "RPUSH", "RPUSHX", "SADD",
    "SCARD", "SET", "SETBIT", "SETEX", "SETNX", "SETRANGE", "SISMEMBER", "SMEMBERS",
    "SMISMEMBER", "SORT_RO", "SPOP", "SRANDMEMBER", "SREM", "SSCAN", "STRLEN", "SUBSTR", "TTL",
    "TYPE", "XACK", "XADD", "XAUTOCLAIM", "XCLAIM", "XDEL", "XLEN", "XPENDING", "XRANGE",
    "XREVRANGE", "XSETID", "XTRIM", "ZADD", "ZCARD", "ZCOUNT", "ZINCRBY", "ZLEXCOUNT",
    "ZMSCORE", "ZPOPMAX", "ZPOPMIN", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE",
    "ZRANK", "ZREM", "ZREMRANGEBYLEX", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "ZREVRANGE",
    "ZREVRANGEBYLEX", "ZREVRANGEBYSCORE", "ZREVRANK", "ZSCAN", "ZSCORE",
];

/// Commands that state their number of keys, of which only one is supported.
const COUNTED_KEYS: &[&str] = &[
    "EVAL",
    "EVALSHA",
    "EVAL_RO",
    "EVALSHA_RO",
    "FCALL",
    "FCALL_RO",
];

/// Most keys of a command that is split.
pub const KEYS_MAX: usize = 16 << 10;

/// Returns the treatment of a whole command.
pub fn plan(command: &[u8]) -> Plan {
    let arguments: Vec<&[u8]> = arguments(command).into_iter().flatten().collect();
    let Some((&name, rest)) = arguments.split_first() else {
        return Plan::Answer(error(
            "a command is an array of bulk strings, its name first",
        ));
    };
    let is = |names: &[&str]| among(name, names);
    let shown = String::from_utf8_lossy(name.get(..32).unwrap_or(name)).to_uppercase();
    let shown = shown.replace(|c: char| c.is_control(), "?");
    let cut = |merge, each: usize| match rest {
        [] => Plan::Answer(error(&format!("{shown} without a key"))),
        _ if !rest.len().is_multiple_of(each) => {
            Plan::Answer(error(&format!("{shown} with a key without a value")))
        }
        _ if rest.len() / each > KEYS_MAX => Plan::Answer(error(&format!(
            "{shown} of {} keys; a command may have {KEYS_MAX}",
            rest.len() / each
        ))),
        // Splitting would not change it.
        _ if rest.len() == each => Plan::Whole,
        _ => {
            let part = |part: &[&[u8]]| {
                let arguments: Vec<_> = [&[name], part].concat();
                array(&arguments)
            };
            Plan::Parts(merge, rest.chunks(each).map(part).collect())
        }
    };
    match rest {
        _ if is(&["MGET"]) => cut(Merge::Arrays, 1),
        _ if is(&["MSET"]) => cut(Merge::Same, 2),
        _ if is(&["DEL", "EXISTS", "UNLINK", "TOUCH"]) => cut(Merge::Sum, 1),
        [_, ..] if is(ONE_KEY) => Plan::Whole,
        [_, keys, ..] if is(COUNTED_KEYS) && keys == b"1" => Plan::Whole,
        [_, _, ..] if is(&["OBJECT"]) => Plan::Whole,
        [] if is(&["PING"]) => Plan::Answer(b"+PONG\r\n".to_vec()),
        [text] if is(&["PING", "ECHO"]) => Plan::Answer(bulk(text)),
        // A browser that was tricked into sending commands within a request.
        _ if is(&["POST", "HOST:"]) => Plan::Quit(error("this is no web server")),
        [] if is(&["QUIT"]) => Plan::Quit(b"+OK\r\n".to_vec()),
        [number] if is(&["SELECT"]) && number == b"0" => Plan::Answer(b"+OK\r\n".to_vec()),
        // Clients look up command names for hints only.
        _ if is(&["COMMAND"]) => Plan::Answer(b"*0\r\n".to_vec()),
        _ if is(&["INFO"]) => Plan::Answer(bulk(
            concat!(
                "# Server\r\nredis_mode:standalone\r\ntidewall_acp_bridge:",
                env!("CARGO_PKG_VERSION"),
                "\r\n"
            )
            .as_bytes(),
        )),
        [] if is(&["HELLO"]) => Plan::Answer(hello()),
        [version] if is(&["HELLO"]) && version == b"2" => Plan::Answer(hello()),
        [_, ..] if is(&["HELLO"]) => {
            // Clients know this prefix, and continue with version 2.
            Plan::Answer(b"-NOPROTO tidewall acp-bridge speaks RESP 2 alone\r\n".to_vec())
        }
        [what, ..] if is(&["CLIENT"]) && among(what, &["SETNAME", "SETINFO"]) => {
            Plan::Answer(b"+OK\r\n".to_vec())
        }
        _ => Plan::Answer(error(&format!(
            "{shown} cannot be served: keys are on several members, and by no one key of it \
             could one be chosen"
        ))),
    }
}

/// Builds an error reply that names the bridge.
pub fn error(text: &str) -> Vec<u8> {
    format!("-ERR tidewall acp-bridge: {text}\r\n").into_bytes()
}

/// Builds a command.
pub fn array(arguments: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        command.extend(bulk(argument));
    }
    command
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut text = format!("${}\r\n", bytes.len()).into_bytes();
    text.extend(bytes);
    text.extend(b"\r\n");
    text
}

fn hello() -> Vec<u8> {
    let mut reply = b"*6\r\n".to_vec();
    reply.extend(bulk(b"server"));
    reply.extend(bulk(b"redis"));
    reply.extend(bulk(b"proto"));
    reply.extend(b":2\r\n");
    reply.extend(bulk(b"mode"));
    reply.extend(bulk(b"standalone"));
    reply
}

/// Merges the replies to all parts into one.
pub fn merge<'a>(how: Merge, replies: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    if let Some(error) = replies.clone().find(|reply| reply.starts_with(b"-")) {
        return error.to_vec();
    }
    let strange = || error("a member's reply is not of the kind that the command has");
    match how {
        Merge::One | Merge::Same => replies.into_iter().next().unwrap_or_default().to_vec(),
        Merge::Sum => {
            let number = |reply: &[u8]| -> Option<i64> {
                let digits = reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?;
                str::from_utf8(digits).ok()?.parse().ok()
            };
            let sum = replies
                .into_iter()
                .try_fold(0_i64, |sum, reply| sum.checked_add(number(reply)?));
            sum.map_or_else(strange, |sum| format!(":{sum}\r\n").into_bytes())
        }
        Merge::Arrays => {
            let mut merged = format!("*{}\r\n", replies.clone().count()).into_bytes();
            for reply in replies {
                match reply.strip_prefix(b"*1\r\n") {
                    Some(element) => merged.extend(element),
                    None => return strange(),
                }
            }
            merged
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Plan {
        let arguments: Vec<_> = text.split(' ').map(str::as_bytes).collect();
        plan(&array(&arguments))
    }

    fn command(text: &str) -> Vec<u8> {
        array(&text.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn commands_of_several_keys_are_cut_by_key() {
        let parts = |parts: &[&str]| parts.iter().map(|part| command(part)).collect();
        assert_eq!(
            of("mget a b"),
            Plan::Parts(Merge::Arrays, parts(&["mget a", "mget b"]))
        );
        assert_eq!(
            of("MSET a 1 b 2"),
            Plan::Parts(Merge::Same, parts(&["MSET a 1", "MSET b 2"]))
        );
        assert_eq!(
            of("UNLINK a b a"),
            Plan::Parts(Merge::Sum, parts(&["UNLINK a", "UNLINK b", "UNLINK a"]))
        );
        for whole in [
            "MGET a",
            "MSET a 1",
            "get a",
            "EVAL s 1 k",
            "OBJECT ENCODING k",
        ] {
            assert_eq!(of(whole), Plan::Whole, "{whole}");
        }
    }

    #[test]
    fn what_no_member_can_serve_is_refused_by_name() {
        for refused in [
            "MULTI",
            "EXEC",
            "SUBSCRIBE c",
            "SELECT 1",
            "KEYS *",
            "FLUSHALL",
            "DBSIZE",
            "GET",
            "EVAL s 2 a b",
            "EVAL s 0",
            "RENAME a b",
            "MSETNX a 1 b 2",
            "MSET a",
            "MSET a 1 b",
            "MGET",
            "NOSUCH x",
            "BLPOP a b 0",
            "AUTH x",
            "CONFIG GET save",
        ] {
            let Plan::Answer(reply) = of(refused) else {
                panic!("{refused}");
            };
            let reply = String::from_utf8(reply).unwrap();
            let name = refused.split(' ').next().unwrap();
            assert!(
                reply.starts_with("-ERR tidewall acp-bridge: ") && reply.contains(name),
                "{reply}"
            );
        }
        assert_eq!(of("HELLO 2"), Plan::Answer(hello()));
        assert!(matches!(of("HELLO 3"), Plan::Answer(reply) if reply.starts_with(b"-NOPROTO")));
        // No line end from the client is echoed within an error.
        let Plan::Answer(reply) = plan(&array(&[b"A\r\n+OK"])) else {
            panic!();
        };
        assert_eq!(reply.iter().filter(|&&byte| byte == b'\n').count(), 1);
    }

    #[test]
    fn replies_become_one() {
        let one = |how, replies: &[&str]| {
            let merged = merge(how, replies.iter().map(|reply| reply.as_bytes()));
            String::from_utf8(merged).unwrap()
        };
        let values = ["*1\r\n$1\r\nx\r\n", "*1\r\n$-1\r\n"];
        assert_eq!(one(Merge::Arrays, &values), "*2\r\n$1\r\nx\r\n$-1\r\n");
        assert_eq!(one(Merge::Sum, &[":2\r\n", ":0\r\n", ":1\r\n"]), ":3\r\n");
        assert_eq!(one(Merge::Same, &["+OK\r\n", "+OK\r\n"]), "+OK\r\n");
        assert_eq!(one(Merge::Sum, &[":2\r\n", "-OOM x\r\n"]), "-OOM x\r\n");
        assert!(one(Merge::Sum, &[":2\r\n", "+OK\r\n"]).starts_with("-ERR"));
        assert!(one(Merge::Arrays, &["*2\r\n:1\r\n:2\r\n", "+OK\r\n"]).starts_with("-ERR"));
    }
}
