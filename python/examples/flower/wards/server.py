"""The server's half."""

import whimbrel.flower

from .job import JOB, OUT

app = whimbrel.flower.server_app(JOB, OUT, existing="replace")
