//! A server in Python.

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
