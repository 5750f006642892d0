"""A Celery application with Postroad as its broker, through the SQS protocol.

export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…      # `postroad keys aws <key id>`, or var/credentials.toml
celery -A celery_app worker --concurrency 2
python celery_app.py
"""

import os
from typing import Any
from urllib.parse import quote, urlsplit

from celery import Celery

endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", "http://127.0.0.1:8080"))
key_id, secret = os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", "")

app = Celery("example", broker=f"sqs://{quote(key_id, safe='')}:{quote(secret, safe='')}@{endpoint.netloc}")
app.conf.update(
    broker_transport_options={"is_secure": endpoint.scheme == "https", "region": "us-east-1", "visibility_timeout": 60},
    task_acks_late=True,  # a task of a worker that dies is delivered again
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
)


@app.task(bind=True, max_retries=5)  # type: ignore[untyped-decorator]
def add(self: Any, left: int, right: int) -> int:
    print(f"{left} + {right} = {left + right}, attempt {self.request.retries + 1}", flush=True)
    return left + right


if __name__ == "__main__":
    for number in range(10):
        add.apply_async((number, 1), countdown=number % 3)
    print("10 tasks were sent")
