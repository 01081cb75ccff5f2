"""The status page of a daemon: one HTML page, and a stream of what it shows.

`static/` holds uPlot 1.6.32 (MIT, `uPlot.LICENSE`), from the npm package `uplot`, whose tarball has
the SHA-256 4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d.
"""
