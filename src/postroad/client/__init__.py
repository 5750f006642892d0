"""The Python SDK: `Postroad` and `AsyncPostroad`, from one definition of every call."""

from postroad.client.clients import AsyncPostroad, Postroad
from postroad.client.shapes import Acked, Batch, BatchItem, Fault, Message, Published, Queue

__all__ = ["Acked", "AsyncPostroad", "Batch", "BatchItem", "Fault", "Message", "Postroad", "Published", "Queue"]
