"""paramiko: a server and its clients, each with a thread for its transport."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import paramiko

CLIENTS = 10
together = threading.Barrier(CLIENTS)
key = paramiko.RSAKey.generate(2048)


class Server(paramiko.ServerInterface):
    def check_auth_password(self, username, password):
        good = (username, password) == ("tester", "secret")
        return paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username):
        return "password"

    def check_channel_request(self, kind, chanid):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=execute, args=(channel, command)).start()
        return True


def execute(channel, command):
    together.wait(60)
    data = channel.makefile("rb").read()
    channel.sendall(command + b": " + data.upper())
    channel.send_exit_status(3)
    channel.close()


def serve():
    for _ in range(CLIENTS):
        sock, _ = listener.accept()
        transport = paramiko.Transport(sock)
        transport.add_server_key(key)
        transport.start_server(threading.Event(), server=Server())


def client(number):
    with paramiko.SSHClient() as ssh:
        ssh.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        host, port = listener.getsockname()
        ssh.connect(
            host, port, "tester", "secret", look_for_keys=False, allow_agent=False, timeout=60
        )
        stdin, stdout, _ = ssh.exec_command(f"command {number}", timeout=60)
        stdin.write(b"some text " * 10_000)
        stdin.channel.shutdown_write()
        assert stdout.read() == b"command %d: " % number + b"SOME TEXT " * 10_000
        assert stdout.channel.recv_exit_status() == 3


listener = socket.create_server(("127.0.0.1", 0), backlog=CLIENTS)
serving = threading.Thread(target=serve)
serving.start()
with ThreadPoolExecutor(CLIENTS) as pool:
    list(pool.map(client, range(CLIENTS)))
serving.join()
listener.close()
print("done")
