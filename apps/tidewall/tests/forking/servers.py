"""Servers that have their clients served by other processes: servers.py KIND PORT [PORT]."""
import fcntl, multiprocessing, os, select, signal, socket, socketserver, subprocess, sys

kind, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]


def listener(port):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(('0.0.0.0', port))
    made.listen(64)
    return made


def serve(data):
    got = data.recv(4096)
    data.sendall(b'pong ' + got)
    data.close()


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def forking_tcp_server():
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            serve(self.request)

    socketserver.ForkingTCPServer.allow_reuse_address = True
    socketserver.ForkingTCPServer(('0.0.0.0', ports[0]), Handler).serve_forever()


def processes():
    listens = listener(ports[0])
    while True:
        data, _ = listens.accept()
        multiprocessing.Process(target=serve, args=(data,), daemon=True).start()
        data.close()
        multiprocessing.active_children()


def postmaster():
    """Helpers first; then a wait for all listeners, an accept, a fork."""
    listens = [listener(port) for port in ports]
    for _ in range(3):
        if os.fork() == 0:
            signal.pause()
    signal.signal(signal.SIGCHLD, reap)
    while True:
        for ready in select.select(listens, [], [])[0]:
            data, _ = ready.accept()
            data.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if os.fork() == 0:
                for other in listens:
                    other.close()
                serve(data)
                os._exit(0)
            data.close()


def epoll_and_fork():
    """As event loops do it, but that each client has a process."""
    listens = listener(ports[0])
    listens.setblocking(False)
    events = select.epoll()
    events.register(listens, select.EPOLLIN)
    signal.signal(signal.SIGCHLD, reap)
    os.set_inheritable(listens.fileno(), True)
    while True:
        events.poll()
        try:
            while True:
                data, _ = listens.accept()
                data.setblocking(True)
                if os.fork() == 0:
                    serve(data)
                    os._exit(0)
                data.close()
        except BlockingIOError:
            pass


def superserver():
    """Waits for a client, has a program accept it, and waits for the program's end."""
    listens = listener(ports[0])
    program = "import socket; data = socket.socket(fileno=0).accept()[0]; data.sendall(b'pong ' + data.recv(4096))"
    waits = select.poll()
    waits.register(listens, select.POLLIN)
    while True:
        waits.poll()
        child = os.fork()
        if child == 0:
            os.dup2(listens.fileno(), 0)
            os.execv(sys.executable, [sys.executable, '-S', '-E', '-c', program])
        os.waitpid(child, 0)


def prefork():
    """Four who wait in accept, each of whom is killed after two clients."""
    listens = listener(ports[0])
    while True:
        for _ in range(4):
            if os.fork() == 0:
                serve(listens.accept()[0])
                serve(listens.accept()[0])
                os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(4):
            os.wait()
            assert os.get_blocking(listens.fileno())


def prefork_by_turns():
    """Four, of whom one at a time waits for two listeners."""
    listens = [listener(port) for port in ports]
    turns = os.open('/tmp', os.O_TMPFILE | os.O_RDWR)
    for _ in range(4):
        if os.fork() == 0:
            while True:
                fcntl.lockf(turns, fcntl.LOCK_EX)
                ready = select.select(listens, [], [])[0]
                data, _ = ready[0].accept()
                fcntl.lockf(turns, fcntl.LOCK_UN)
                serve(data)
    signal.pause()


def parent_listened():
    """The parent has served one, then workers serve."""
    listens = listener(ports[0])
    serve(listens.accept()[0])
    select.select([listens], [], [], 0)
    for _ in range(2):
        if os.fork() == 0:
            while True:
                serve(listens.accept()[0])
    signal.pause()


def parent_serves_and_child():
    """The parent serves one, and a child the others, until it is told to end."""
    listens = listener(ports[0])
    serve(listens.accept()[0])
    child = os.fork()
    if child == 0:
        while True:
            serve(listens.accept()[0])
    signal.signal(signal.SIGHUP, lambda *_: os.kill(child, signal.SIGKILL))
    os.waitpid(child, 0)
    assert os.get_blocking(listens.fileno())
    while True:
        serve(listens.accept()[0])


def two_workers():
    """Of whom the second is ended."""
    listens = listener(ports[0])
    workers = []
    for _ in range(2):
        workers.append(os.fork())
        if workers[-1] == 0:
            while True:
                serve(listens.accept()[0])
    signal.signal(signal.SIGHUP, lambda *_: os.kill(workers[1], signal.SIGKILL))
    os.waitpid(workers[1], 0)
    # It had not the listener's way to wait for connections.
    assert os.get_blocking(listens.fileno())
    os.waitpid(workers[0], 0)


def reuseport():
    """Three, each with a listener at one address."""
    for _ in range(3):
        if os.fork() == 0:
            listens = socket.socket()
            listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listens.bind(('0.0.0.0', ports[0]))
            listens.listen(64)
            while True:
                data = listens.accept()[0]
                got = data.recv(4096)
                # A worker that has served one client serves no other for a while.
                data.sendall(b'pong ' + got)
                data.close()
                signal.sigtimedwait([], 0.2)
    signal.pause()


def beside():
    """Serves at an address that another process may have, too; one begins at each SIGHUP, and the
    next ends it."""
    listens = socket.socket()
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listens.bind(('0.0.0.0', ports[0]))
    listens.listen(64)
    others = []

    def change(*_):
        if others:
            return others.pop().kill()
        others.append(subprocess.Popen([sys.executable, *sys.argv]))

    signal.signal(signal.SIGHUP, change)
    while True:
        data, _ = listens.accept()
        data.sendall(b'%d ' % os.getpid())
        serve(data)


def alone():
    """One process, which waits in accept."""
    listens = listener(ports[0])
    while True:
        serve(listens.accept()[0])


def daemon():
    """In the background, with a listener from before, which an event loop waits for."""
    listens = listener(ports[0])
    listens.setblocking(False)
    if os.fork():
        os._exit(0)
    os.setsid()
    events = select.epoll()
    events.register(listens, select.EPOLLIN)
    while True:
        events.poll()
        try:
            while True:
                data, _ = listens.accept()
                data.setblocking(True)
                serve(data)
        except BlockingIOError:
            pass


globals()[kind]()
