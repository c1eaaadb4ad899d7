"""A ward's half: its name and its rows."""

import whimbrel.flower
from flwr.app import Context

from .job import STATES, WARDS, rows


def data(context: Context):
    ward = WARDS[int(context.node_config["partition-id"])]
    return ward, rows(ward)


app = whimbrel.flower.client_app(data, STATES)
