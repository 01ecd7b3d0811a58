"""Clients of a server, six at a time: how many were answered.

client.py HOST PORTS CLIENTS SENT WANTED: ports with commas between; bytes in hexadecimal."""
import socket, sys, threading

host, ports, clients, sent, wanted = sys.argv[1:]
ports = [int(port) for port in ports.split(',')]
sent, wanted = bytes.fromhex(sent), bytes.fromhex(wanted)
served, lock = 0, threading.Lock()


def ask(number):
    global served
    got = b''
    try:
        with socket.create_connection((host, ports[number % len(ports)]), 10) as data:
            data.settimeout(10)
            data.sendall(sent)
            while wanted not in got:
                part = data.recv(65536)
                if not part:
                    break
                got += part
    except OSError as error:
        print(number, error, file=sys.stderr)
    with lock:
        served += wanted in got


clients = int(clients)
for first in range(0, clients, 6):
    wave = [threading.Thread(target=ask, args=(number,)) for number in range(first, min(first + 6, clients))]
    for thread in wave:
        thread.start()
    for thread in wave:
        thread.join()
print(served)
