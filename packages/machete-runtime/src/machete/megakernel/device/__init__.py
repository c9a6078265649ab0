"""The device side: the loop, the page ring and the instructions, as CuTe DSL functions specialised by Python values."""
