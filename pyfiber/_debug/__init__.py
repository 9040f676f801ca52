"""Looking at a running process from outside: `python -m pyfiber ps` and `top`.

In the process that is looked at: ``snapshot`` puts what its fibers do into plain data, ``server``
answers with it, on a socket that ``places`` says where to find, or on one of the client's. On the
other side: ``client`` asks, ``remote`` gets into a process that has no socket, ``text`` prints,
``command`` is the command line.

Question and answer are a line of JSON each, on a Unix socket. The answer is made by a thread of its
own, which is asleep otherwise, so it comes while the loop is busy and while it waits.
"""
