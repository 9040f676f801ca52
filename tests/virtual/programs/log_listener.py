"""logging: threads write to a queue, and the listener's thread writes what it finds there."""

import logging
import logging.handlers
import queue
import threading

THREADS, RECORDS = 50, 20


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


kept = Kept()
channel = queue.Queue(-1)
listener = logging.handlers.QueueListener(channel, kept, respect_handler_level=True)
log = logging.getLogger("program")
log.setLevel(logging.INFO)
log.addHandler(logging.handlers.QueueHandler(channel))
together = threading.Barrier(THREADS)


def work(name):
    together.wait(60)
    for number in range(RECORDS):
        log.info("%s says %d", name, number)


listener.start()
threads = [threading.Thread(target=work, args=(f"t{n}",), name=f"t{n}") for n in range(THREADS)]
for thread in threads:
    thread.start()
idents = {thread.ident: thread.name for thread in threads}
for thread in threads:
    thread.join()
listener.stop()
assert len(kept.records) == THREADS * RECORDS
for record in kept.records:
    assert record.message.startswith(f"{record.threadName} says"), record
    assert idents[record.thread] == record.threadName
print("done")
