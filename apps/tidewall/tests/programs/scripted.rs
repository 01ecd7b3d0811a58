//! Servers in Python and Node.

use crate::lane::{Program, ask};

const ECHO: &str = "import asyncio, signal

async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, address):
        self.transport.sendto(data, address)

async def main():
    loop = asyncio.get_running_loop()
    end = loop.create_future()
    loop.add_signal_handler(signal.SIGTERM, end.set_result, None)
    await loop.create_datagram_endpoint(Echo, local_addr=('10.99.0.2', 7000))
    server = await asyncio.start_server(serve, '0.0.0.0', 7000)
    await end
    server.close()

asyncio.run(main())
";

const NODE: &str = "const http = require('http'), fs = require('fs');
const server = http.createServer((request, response) => {
  if (request.method === 'POST') { request.pipe(response); return; }
  fs.createReadStream(process.env.DIR + '/www' + request.url)
    .on('error', () => { response.statusCode = 404; response.end('none'); }).pipe(response);
}).listen(8000, '0.0.0.0');
process.on('SIGTERM', () => process.exit(0));
";

#[test]
fn python_http_server() {
    Program {
        name: "python3 -m http.server",
        package: "python3",
        needs: &["python3", "ab"],
        files: &[],
        server: "python3 -m http.server 8000 --bind 0.0.0.0 --directory $DIR/www",
        beside: &[],
        ports: &[8000],
        asks: &[
            ask(
                "files of 0 B to 8 MB, errors",
                "for file in 0k 1k 100k large; do curl -sS http://$SERVER:8000/$file | md5sum; done
                 curl -sS -o /dev/null -w '%{http_code}\\n' http://$SERVER:8000/none",
            ),
            ask(
                "500 connections, 4 at a time",
                "ab -q -n 500 -c 4 http://$SERVER:8000/1k | grep -E 'Complete|Failed|transferred'",
            ),
        ],
        takes: &["0.0.0.0:8000"],
        lacks: "",
    }
    .check();
}

#[test]
fn python_asyncio() {
    Program {
        name: "python3, asyncio",
        package: "python3",
        needs: &["python3", "nc"],
        files: &[("echo.py", ECHO)],
        server: "python3 $DIR/echo.py",
        beside: &[],
        ports: &[7000],
        asks: &[
            ask("1 MB echoed over each of 10 connections at once", "seq 150000 >$DIR/sent
                 for n in $(seq 10); do nc -N $SERVER 7000 <$DIR/sent | md5sum & done; wait"),
            ask("UDP", "for n in $(seq 20); do exec 3<>/dev/udp/$SERVER/7000; echo datagram $n >&3; timeout 5 head -n 1 <&3; done"),
        ],
        takes: &["0.0.0.0:7000", "10.99.0.2:7000"],
        lacks: "",
    }
    .check();
}

#[test]
fn node() {
    Program {
        name: "node, http",
        package: "nodejs",
        needs: &["node", "ab"],
        files: &[("server.js", NODE)],
        server: "node $DIR/server.js",
        beside: &[],
        ports: &[8000],
        asks: &[
            ask(
                "files of 0 B to 8 MB, errors, 2 MB there and back",
                "for file in 0k 1k 100k large; do curl -sS http://$SERVER:8000/$file | md5sum; done
                 curl -sS -w '%{http_code}\\n' http://$SERVER:8000/none; seq 300000 | curl -sS --data-binary @- http://$SERVER:8000/ | md5sum",
            ),
            ask(
                "keep-alive: 2,000 requests over 20 connections",
                "ab -q -k -c 20 -n 2000 http://$SERVER:8000/1k | grep -E 'Complete|Failed'",
            ),
        ],
        takes: &["0.0.0.0:8000"],
        lacks: "cluster (served by the kernel's sockets)",
    }
    .check();
}
