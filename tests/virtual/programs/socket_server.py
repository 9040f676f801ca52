"""socketserver: a thread for each connection of TCP and for each datagram of UDP."""

import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor

CLIENTS = 100
together = threading.Barrier(CLIENTS)
ended = []


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        together.wait(60)
        for line in self.rfile:
            self.wfile.write(line.upper())

    def finish(self):
        super().finish()
        ended.append(threading.get_ident())


class Datagrams(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        sock.sendto(data.upper(), self.client_address)


class TCPServer(socketserver.ThreadingTCPServer):
    request_queue_size = CLIENTS


def line_client(number):
    with socket.create_connection(tcp.server_address, 60) as sock, sock.makefile("rb") as lines:
        for turn in range(5):
            sock.sendall(b"line %d.%d\n" % (number, turn))
            assert lines.readline() == b"LINE %d.%d\n" % (number, turn)


def datagram_client(number):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.sendto(b"datagram %d" % number, udp.server_address)
        assert sock.recv(100) == b"DATAGRAM %d" % number


tcp = TCPServer(("127.0.0.1", 0), Lines)
udp = socketserver.ThreadingUDPServer(("127.0.0.1", 0), Datagrams)
serving = [threading.Thread(target=server.serve_forever) for server in (tcp, udp)]
for thread in serving:
    thread.start()
with ThreadPoolExecutor(CLIENTS) as pool:
    list(pool.map(line_client, range(CLIENTS)))
    list(pool.map(datagram_client, range(20)))
for server, thread in zip((tcp, udp), serving, strict=False):
    server.shutdown()
    thread.join()
    server.server_close()  # waits for the threads of its requests
assert len(ended) == CLIENTS
print("done")
