"""FastAPI that publishes without blocking its event loop: see docs/publishing-many.md."""

from celery import Celery
from fastapi import FastAPI

from celery_sqs_visibility import apublish

app = FastAPI()
celery = Celery("proj", broker_transport="celery_sqs_visibility")


@celery.task
def make_thumbnail(key: str) -> None: ...


@app.post("/images/{key}", status_code=202)
async def add_image(key: str) -> dict[str, str]:
    result = await apublish(make_thumbnail.s(key))
    return {"task": result.id}
