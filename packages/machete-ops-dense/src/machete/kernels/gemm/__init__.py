"""Matrix products: `GemmOp.schedule(a=x, b=w, c=y)` computes `c = a @ b.T`; `linear` is that as a torch op.

`tune` measures which tiles are fastest for a product on the card at hand.
"""

from .linear import grad_input, grad_weight, linear
from .op import GemmOp
from .tuning import Tuning, tune

__all__ = ["GemmOp", "Tuning", "grad_input", "grad_weight", "linear", "tune"]
