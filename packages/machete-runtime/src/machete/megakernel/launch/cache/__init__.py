"""Compiled kernels on disk: what identifies one, what it was traced from, and the files that hold it.

To find a kernel is to know that tracing would give the same code, without tracing. So there are two questions, as in a
compiler cache that works with dependency files:

1. `identity`: what is asked for? Kinds, layout, target, versions and flags, as text. Its hash names an entry.
2. `traced`: when this was compiled, which files was code traced from, and with which values? The entry lists them, with
   hashes; it counts only if all are the same now.

The entry then names an object by the hash of its content (`store`).
"""
