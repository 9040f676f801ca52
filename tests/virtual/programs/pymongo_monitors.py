"""pymongo: the threads that monitor a server; it refuses at first, then there is a small one."""

import socket
import socketserver
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import bson
import pymongo
from pymongo.errors import ServerSelectionTimeoutError

CLIENTS = 30
together = threading.Barrier(CLIENTS)
HELLO = {
    "ok": 1,
    "helloOk": True,
    "isWritablePrimary": True,
    "ismaster": True,
    "maxBsonObjectSize": 16777216,
    "maxMessageSizeBytes": 48000000,
    "maxWriteBatchSize": 100000,
    "minWireVersion": 0,
    "maxWireVersion": 21,
}
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013


class Mongo(socketserver.StreamRequestHandler):
    def handle(self):
        while head := self.rfile.read(16):
            length, ident, _, kind = struct.unpack("<iiii", head)
            body = self.rfile.read(length - 16)
            if kind == OP_QUERY:
                start = body.index(b"\0", 4) + 9
                prefix = struct.pack("<iqii", 8, 0, 0, 1)
                answer_kind = OP_REPLY
            else:
                start = 5
                prefix = struct.pack("<iB", 0, 0)
                answer_kind = OP_MSG
            size = struct.unpack_from("<i", body, start)[0]
            answer = self.answer(bson.decode(body[start : start + size]))
            told = prefix + bson.encode(answer)
            self.wfile.write(struct.pack("<iiii", 16 + len(told), 0, ident, answer_kind) + told)

    def answer(self, command):
        if "meet" in command:
            together.wait(60)
            return {"ok": 1, "number": command["meet"]}
        return HELLO


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]

with pymongo.MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=200) as client:
    try:
        client.admin.command("ping")
    except ServerSelectionTimeoutError:
        pass
    else:
        raise AssertionError("somebody answers")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CLIENTS


with Server(("127.0.0.1", 0), Mongo) as server:
    threading.Thread(target=server.serve_forever).start()
    client = pymongo.MongoClient(*server.server_address, serverSelectionTimeoutMS=60_000)
    with client, ThreadPoolExecutor(CLIENTS) as pool:
        meet = lambda number: client.admin.command("meet", number)["number"]  # noqa: E731
        assert list(pool.map(meet, range(CLIENTS))) == list(range(CLIENTS))
    server.shutdown()
print("done")
