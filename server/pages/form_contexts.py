"""What the templates of forms may use, declared as in :mod:`server.pages.contexts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.pages.contexts import Page
from shared.schemas import ClientView, JoinToken, JoinTokenView, UserToken, UserView

__all__ = [
    "ActionPage",
    "ClientsPage",
    "CreatePage",
    "FormField",
    "InvitationPage",
    "Picture",
    "SignInPage",
    "SignedInPage",
    "TokenPage",
    "UsersPage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInPage(Page):
    """``wanted``: the page to go to; ``fault``: why the last attempt failed; ``hours``: how long it lasts;
    ``provider``: the identity provider's name, if there is one."""

    wanted: str
    fault: str
    hours: int
    provider: str | None
    provider_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInPage(Page):
    """Leads to the page that was asked for."""

    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """``kind``: text, number, hidden, or tick (a box that has to be ticked)."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPage(Page):
    """What an action does, its form, and the command that does the same.

    ``refusal``: why there is no form.
    """

    label: str
    trail: Sequence[tuple[str, str]]
    explanation: str
    command: str
    address: str
    back: str
    fields: Sequence[FormField]
    fault: str
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePage(Page):
    """``text``: the YAML; ``found``: what it says, if it is right; ``fault``: what is wrong with it.

    ``given``: the fields of the short form; ``choices``: what there is to choose from.
    """

    text: str
    found: str
    fault: str
    refusal: str
    template: str
    given: Mapping[str, str]
    choices: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsPage(Page):
    """``refusal``: why neither clients nor join codes are shown, and there is no form."""

    clients: Sequence[ClientView]
    join_tokens: Sequence[JoinTokenView]
    given: Mapping[str, str]
    fault: str
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A QR code: ``size`` modules a side, ``path`` the dark ones as an SVG path."""

    size: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationPage(Page):
    """A join code, shown this once: as text, as a picture, and what a site pastes.

    ``caution``: if it leads to this machine only.
    """

    made: JoinToken
    code: str
    picture: Picture
    site: str
    command: str
    caution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersPage(Page):
    """``given``: what was typed; ``refusal``: why nobody is shown, and there is no form."""

    users: Sequence[UserView]
    roles: Sequence[str]
    given: Mapping[str, str]
    fault: str
    refusal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPage(Page):
    """A person's token, shown this once, and the command that would have made it."""

    made: UserToken
    address: str
    command: str
