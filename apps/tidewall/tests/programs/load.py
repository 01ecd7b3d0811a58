"""load.py tcp|udp SERVER CONNECTIONS ROUNDS: what each connection of memcached's text
protocol reads is what it has written."""
import socket
import struct
import sys
import threading

protocol, server, connections, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
right = [0] * connections


class Tcp:
    def __init__(self):
        self.file = socket.create_connection((server, 11211), timeout=20).makefile("rwb")

    def ask(self, request, lines):
        self.file.write(request)
        self.file.flush()
        return b"".join(self.file.readline() for _ in range(lines))


class Udp:
    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.settimeout(1)
        self.socket.connect((server, 11211))
        self.request = 0

    def ask(self, request, lines):
        """Datagrams may be lost, and are asked for again."""
        self.request = (self.request + 1) % 65536
        for _ in range(10):
            self.socket.send(struct.pack("!4H", self.request, 0, 1, 0) + request)
            try:
                while True:
                    answer = self.socket.recv(65536)
                    if struct.unpack("!H", answer[:2])[0] == self.request:
                        return answer[8:]
            except TimeoutError:
                pass
        return b"nothing"


def run(number):
    connection = {"tcp": Tcp, "udp": Udp}[protocol]()
    for turn in range(rounds):
        key, value = b"k%d-%d" % (number, turn), b"v%d" % turn * (turn % 100 + 1)
        stored = connection.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value), 1)
        got = connection.ask(b"get %s\r\n" % key, 3)
        wanted = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
        right[number] += stored == b"STORED\r\n" and got == wanted


threads = [threading.Thread(target=run, args=(number,)) for number in range(connections)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(protocol, "right", sum(right), "of", connections * rounds)
