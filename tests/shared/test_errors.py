"""The shape of errors."""

from trunkline.shared.errors import ModelNotFound, Overloaded, RequestError


def test_the_shape_is_openais() -> None:
    error = RequestError("n: 0 < 1", param="n")
    assert error.body() == {
        "error": {"message": "n: 0 < 1", "type": "invalid_request_error", "param": "n", "code": None}
    }


def test_codes_are_openais_names_of_causes() -> None:
    missing = ModelNotFound("m")
    assert (missing.status, missing.param, missing.code) == (404, "model", "model_not_found")
    assert "'m'" in missing.message
    assert Overloaded("full", retry_after=1.0).code == "rate_limit_exceeded"
    assert Overloaded("loading", retry_after=1.0, status=503).code is None


def test_a_message_that_quotes_megabytes_is_cut() -> None:
    error = RequestError(f"model: {'x' * 1_000_000!r} is not served here")
    assert len(error.message) == 1000
    assert error.message.endswith("xxx...")
