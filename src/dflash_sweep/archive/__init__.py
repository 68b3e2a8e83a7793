"""One file that holds a study whole: rows, traces, logs, configuration, findings; and its way into another database.

A zip file. `manifest.json` lists every member with size and SHA-256; a member that it does not list, or that is not
what it says, is refused, and so is everything a hostile archive could do with names, links or sizes.
`packing.export` writes one, `unpacking.read` takes one in.
"""
