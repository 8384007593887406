"""Answers are read whatever their form, and a connection stays only where the next answer has its place."""

import http.client
import socket
import threading

import pytest

from celery_sqs_visibility.aws.exchange import exchange

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


def answered(*pieces, ends=False):
    """Exchange a request for an answer that comes in pieces; the connection ends, or stays open."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)

        def answer():
            theirs.recv(len(REQUEST), socket.MSG_WAITALL)
            for piece in pieces:
                theirs.sendall(piece)
            if ends:
                theirs.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return exchange(ours, REQUEST)
        finally:
            thread.join()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 \r\ncontent-length:5 \r\nConnection: keep-alive\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    ],
    ids=["with a length", "kept alive", "in chunks", "continued"],
)
def test_the_connection_stays_after_an_answer_that_has_an_end(head):
    answer = answered(head, b"" if b"chunked" in head else b"hello")
    assert (answer.status_code, answer.content, answer.keeps_connection) == (200, b"hello", True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["closed", "of 1.0", "without a length"],
)
def test_the_connection_ends_where_the_server_ends_it(head):
    answer = answered(head, b"hello", ends=True)
    assert (answer.status_code, answer.content, answer.keeps_connection) == (200, b"hello", False)


@pytest.mark.parametrize("head_size", range(1, PLAIN.index(b"hello")))
def test_a_head_may_come_in_pieces(head_size):
    answer = answered(PLAIN[:head_size], PLAIN[head_size:])
    assert (answer.status_code, answer.content) == (200, b"hello")


def test_a_body_may_be_larger_than_what_is_read_at_once():
    body = b"x" * 1_000_000
    answer = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", body)
    assert (answer.content, answer.keeps_connection) == (body, True)


@pytest.mark.parametrize("status", [b"200 OK", b"400 No"])
def test_of_an_answer_that_is_cut_off_there_is_the_beginning_and_no_more_requests(status):
    answer = answered(b"HTTP/1.1 " + status + b"\r\n", b"Content-Length: 9\r\n\r\nhello", ends=True)
    assert (answer.content, answer.keeps_connection) == (b"hello", False)


def test_a_chunk_that_is_cut_off_is_no_answer():
    with pytest.raises(http.client.IncompleteRead):
        answered(b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", ends=True)


def test_the_answer_to_a_request_that_was_not_taken_whole_is_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        theirs.shutdown(socket.SHUT_RD)  # what is sent from now on breaks the pipe
        assert exchange(ours, REQUEST).status_code == 413


def test_a_refusal_has_its_headers():
    head = b"HTTP/1.1 400 Bad Request\r\nx-amzn-query-error: a;b\r\nContent-Length: 5\r\n\r\n"
    answer = answered(head, b"hello")
    assert (answer.status_code, answer.content, answer.headers["X-Amzn-Query-Error"]) == (
        400,
        b"hello",
        "a;b",
    )


@pytest.mark.parametrize("pieces", [[], [b"no HTTP\r\n\r\n"]], ids=["nothing", "something else"])
def test_what_is_no_answer_is_an_error(pieces):
    with pytest.raises(http.client.HTTPException):
        answered(*pieces, ends=True)


def test_no_answer_in_time_is_a_timeout():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        with pytest.raises(TimeoutError):
            exchange(ours, REQUEST)
