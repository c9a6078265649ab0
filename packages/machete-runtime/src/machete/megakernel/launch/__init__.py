"""Compiling a plan, binding tensors to it, and launching it: on a GPU or on a simulator."""
