"""Measures pyfiber beside its peers: `python -m bench`, typed in a checkout.

This package is not installed.

    model.py     what a row, a case and a sample are
    peers.py     the libraries pyfiber is compared with, and how to install them
    proc.py      what Linux reports about a process
    io/          servers and the load that they are measured under
    rows/        one module for each family of benchmarks; rows/__init__.py is the registry
    worker.py    the process in which one case is measured
    runner.py    runs the workers: repetitions interleaved, the best one kept
    report.py    the table and the JSON document
    progress.py  the progress bar
    __main__.py  the command line
    table.py     the tables of docs/performance.md, made from JSON documents
    c/, go/      programs in other languages, built by c/Makefile

Separate programs, typed as `python -m bench.NAME`:

    instructions.py  how many instructions the operations of hot_paths.py take
    patch_cost.py    what the patch costs outside of fibers
    awaiting.py      what await_() costs
    libraries.py     what libraries cost in fibers
    service.py       a service of Flask and PostgreSQL

To add a benchmark, write its cases in a module of rows/ and list its Row there.
"""
