"""A message of a subscription: `subject`, `data`, `headers` and `reply`."""

from nats.aio.msg import Msg

IncomingMessage = Msg
