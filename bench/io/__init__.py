"""Measures servers under load, on Linux only and on 127.0.0.1 only.

programs.py      builds the load generator and the C server from bench/c
certificate.py   a key and a certificate for the length of a measurement
subjects.py      the servers by name, and what each of them needs
servers.py       the servers in Python: pyfiber, asyncio, gevent, trio, threads
serve.py         the process of such a server
processes.py     starts a server, starts the load, ends both
counting.py      counts a server's system calls
measuring.py     the measurements for rows/io.py

"""
