"""What coordinator, worker and simulation must compute bit for bit alike.

Nothing in here knows FastAPI, SQLAlchemy, httpx, the clock or the environment
(held by ``tests/architecture``).
"""
