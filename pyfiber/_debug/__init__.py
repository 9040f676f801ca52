"""Looking at a running process from outside: `python -m pyfiber ps` and `top`.

In the process that is looked at, ``snapshot`` describes the fibers as plain data, and ``server``
sends that to clients, on a socket in a folder that ``places`` chooses, or on a connection to the
client's own socket. On the other side, ``client`` asks, ``remote`` gets into a process that has no
socket, ``text`` formats answers, and ``command`` is the command line.

Question and answer are a line of JSON each, on a Unix socket. A separate thread, which sleeps
otherwise, makes the answer. So the answer comes while the loop is busy and while the loop waits.
"""
