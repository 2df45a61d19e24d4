"""The decisions of the guard of the page, as values: codes, sessions, hosts, origins, forms."""

from http import HTTPStatus

import pytest

from fgsched.web.guard import (
    IDLE,
    MOST_CHANGES,
    MOST_CODES,
    MOST_SESSIONS,
    Guard,
    digest,
    fields_of,
    new_code,
    secret_in,
)

NAME = "fg0123456789abcdef.localhost"
PORT = 43121


def invited(guard, now=0.0, *, read_only=False):
    code = new_code()
    guard.invite(digest(code), now, shown_at=0.0, read_only=read_only)
    return code


@pytest.fixture
def guard():
    return Guard(NAME, PORT)


def opened(guard, now=0.0, *, read_only=False):
    return guard.session(guard.redeem(invited(guard, now, read_only=read_only), now), now)


def test_a_code_has_256_bits_and_opens_once(guard):
    code = invited(guard)
    assert len(code) == 43
    assert guard.redeem(code, 1.0)
    assert guard.redeem(code, 1.0) is None


def test_looking_at_a_code_does_not_use_it(guard):
    code = invited(guard)
    assert [guard.code(code, at) is not None for at in (1.0, 2.0, 3.0)] == [True] * 3
    assert guard.redeem(code, 4.0)


def test_a_code_opens_for_two_minutes(guard):
    early, late = invited(guard), invited(guard)
    assert guard.redeem(early, 120.0)
    assert guard.redeem(late, 120.1) is None


@pytest.mark.parametrize("text", ["", "x", "a" * 43, "a" * 44, "ä" * 43, "\0" * 43, "'" * 43])
def test_another_text_is_no_code(guard, text):
    invited(guard)
    assert guard.redeem(text, 1.0) is None


def test_neither_codes_nor_sessions_are_kept_in_clear(guard):
    code = invited(guard)
    secret = guard.redeem(invited(guard), 0.0)
    kept = repr(vars(guard))
    assert code not in kept
    assert secret not in kept


def test_codes_and_sessions_are_limited(guard):
    codes = [invited(guard) for _ in range(MOST_CODES + 1)]
    assert guard.code(codes[0], 0.0) is None
    secrets = [guard.redeem(invited(guard, at), at) for at in range(MOST_SESSIONS + 1)]
    assert guard.sessions == MOST_SESSIONS
    assert guard.session(secrets[0], 70.0) is None


def test_a_session_ends_after_12_hours_without_use(guard):
    secret = guard.redeem(invited(guard), 0.0)
    assert guard.session(secret, IDLE)
    assert guard.session(secret, 2 * IDLE)
    assert guard.session(secret, 3 * IDLE + 1) is None


def test_an_ended_session_is_no_session(guard):
    secret = guard.redeem(invited(guard), 0.0)
    session = guard.session(secret, 0.0)
    guard.end(session)
    assert guard.session(secret, 0.0) is None
    assert not guard.is_open(session)


def test_the_name_of_the_page_is_served(guard):
    assert guard.refused_host(f"{NAME}:{PORT}") is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        NAME,
        f"evil.example:{PORT}",
        f"127.0.0.1:{PORT}",  # cookies of this name go to the servers of all users
        f"localhost:{PORT}",
        f"[::1]:{PORT}",
        f"{NAME}:{PORT + 1}",
        f"{NAME.upper()}:{PORT}",
        f"{NAME}.:{PORT}",
        f"x.{NAME}:{PORT}",
        f"{NAME}:{PORT}, evil.example",
        f"evil.example, {NAME}:{PORT}",
        f"{NAME}:0{PORT}",
        f"user@{NAME}:{PORT}",
    ],
)
def test_any_other_name_is_misdirected(guard, host):
    assert guard.refused_host(host).status == HTTPStatus.MISDIRECTED_REQUEST


def test_at_a_unix_socket_the_port_is_that_of_the_client():
    guard = Guard(NAME, 0)
    assert guard.refused_host(f"{NAME}:8765") is None
    assert guard.cookie_of(f"{NAME}:8765") == "fgsched-8765"
    assert guard.refused_host("evil.example:8765") is not None
    assert guard.refused_host(f"{NAME}:x") is not None


@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({"origin": f"http://{NAME}:{PORT}"}, True),
        ({"origin": f"http://{NAME}:{PORT}", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "null"}, False),
        ({"origin": f"http://127.0.0.1:{PORT}"}, False),  # another origin than that of the host
        ({"origin": f"https://{NAME}:{PORT}"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": f"http://{NAME}:{PORT}", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_a_form_of_another_page_is_refused(guard, headers, is_ours):
    refusal = guard.refused_origin({"host": f"{NAME}:{PORT}"} | headers)
    assert (refusal is None) is is_ours


def test_a_form_repeats_the_token_of_its_session(guard):
    session, other = opened(guard), opened(guard)
    assert guard.refused_change(session, {"token": session.token}, 0.0) is None
    for token in ("", "x", other.token, "ä"):
        assert guard.refused_change(session, {"token": token}, 0.0).status == HTTPStatus.FORBIDDEN


def test_a_read_only_session_changes_nothing_but_can_end(guard):
    session = opened(guard, read_only=True)
    form = {"token": session.token}
    assert guard.refused_change(session, form, 0.0).status == HTTPStatus.FORBIDDEN
    assert guard.refused_change(session, form, 0.0, path="/ended") is None
    assert guard.refused_change(session, {"token": "x"}, 0.0, path="/ended").status == HTTPStatus.FORBIDDEN


def test_twenty_changes_a_minute_are_taken(guard):
    session = opened(guard)
    form = {"token": session.token}
    assert [guard.refused_change(session, form, at) for at in range(MOST_CHANGES)] == [None] * MOST_CHANGES
    assert guard.refused_change(session, form, 20.0).status == HTTPStatus.TOO_MANY_REQUESTS
    assert guard.refused_change(session, form, 60.0) is None
    assert guard.refused_change(session, form, 60.5).status == HTTPStatus.TOO_MANY_REQUESTS


def test_a_form_is_read_with_all_its_bytes():
    assert fields_of(b"job=1&job=2&name=a%26b&empty=") == [
        ("job", "1"),
        ("job", "2"),
        ("name", "a&b"),
        ("empty", ""),
    ]
    assert fields_of(b"a=%ff\xff") == [("a", "\ufffd\ufffd")]


def test_one_cookie_is_read_by_its_name():
    assert secret_in("a=1; fgsched-43121=xyz; fgsched-1=no", "fgsched-43121") == "xyz"
    assert secret_in("", "fgsched-43121") == ""
    assert secret_in("=;;\x01", "fgsched-43121") == ""
