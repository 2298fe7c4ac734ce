"""The status pages: plain HTML made on the server, kept live by server-sent events."""

from server.pages.reader import Reader
from server.pages.routes import STATIC, pages_router, problem_response, wants_html
from server.pages.sign_in import SignIn

__all__ = ["STATIC", "Reader", "SignIn", "pages_router", "problem_response", "wants_html"]
