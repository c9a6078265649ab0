"""python -m machete.sim.programs is machete-sim."""

from .cli import app

app(prog_name="machete-sim")
