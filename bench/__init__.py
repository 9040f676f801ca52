"""pyfiber and its peers, measured side by side: `python -m bench`, typed in a checkout.

Nothing of this is installed.

    model.py     what a row, a case and a sample are
    peers.py     the libraries pyfiber is compared with, and how to install them
    proc.py      what Linux tells about a process
    io/          servers and the load that they are measured under
    rows/        one module for each family of benchmarks; rows/__init__.py is the registry
    worker.py    the process in which one case is measured
    runner.py    which worker measures when: repetitions interleaved, best one kept
    report.py    the table and the JSON document
    progress.py  the progress bar
    __main__.py  the command line
    table.py     the tables of docs/performance.md, made of kept documents
    c/, go/      programs in other languages, built by c/Makefile

Programs of their own, typed as `python -m bench.NAME`:

    instructions.py  how many instructions the operations of hot_paths.py take
    patch_cost.py    what the patch costs outside of fibers
    awaiting.py      what await_() costs
    libraries.py     what libraries cost in fibers
    service.py       a service of Flask and PostgreSQL

To add a benchmark, write its cases in a module of rows/ and list its Row there.
"""
