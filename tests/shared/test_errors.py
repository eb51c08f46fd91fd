"""The shape of errors."""

from trunkline.shared.errors import RequestError


def test_the_shape_is_openais() -> None:
    error = RequestError("model: 'm' is not served here", status=404, param="model")
    assert error.body() == {
        "error": {
            "message": "model: 'm' is not served here",
            "type": "invalid_request_error",
            "param": "model",
            "code": 404,
        }
    }


def test_a_message_that_quotes_megabytes_is_cut() -> None:
    error = RequestError(f"model: {'x' * 1_000_000!r} is not served here")
    assert len(error.message) == 1000
    assert error.message.endswith("xxx...")
