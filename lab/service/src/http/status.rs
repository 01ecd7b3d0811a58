//! Status codes (RFC 9110 §15).

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($name:ident = $code:literal $reason:literal $about:literal)*) => {
        impl Status {
            $(
                #[doc = $about]
                pub const $name: Status = Status($code);
            )*

            /// Returns its reason phrase.
            pub fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }
        }
    };
}

statuses! {
    OK = 200 "OK" "200: here it is."
    NO_CONTENT = 204 "No Content" "204: the answer to OPTIONS."
    PARTIAL_CONTENT = 206 "Partial Content" "206: the ranges that were asked for."
    MOVED_PERMANENTLY = 301 "Moved Permanently" "301: a directory, named without its final slash."
    NOT_MODIFIED = 304 "Not Modified" "304: the client's copy is current."
    BAD_REQUEST = 400 "Bad Request" "400: no HTTP, or ambiguous."
    FORBIDDEN = 403 "Forbidden" "403: there, and not to be read."
    NOT_FOUND = 404 "Not Found" "404: nothing of that name."
    METHOD_NOT_ALLOWED = 405 "Method Not Allowed" "405: a method that files do not have."
    REQUEST_TIMEOUT = 408 "Request Timeout" "408: the request did not become complete in time."
    PRECONDITION_FAILED = 412 "Precondition Failed" "412: a precondition does not hold."
    CONTENT_TOO_LARGE = 413 "Content Too Large" "413: the content of the request is larger than allowed."
    URI_TOO_LONG = 414 "URI Too Long" "414: the target of the request is longer than allowed."
    RANGE_NOT_SATISFIABLE = 416 "Range Not Satisfiable" "416: no range that was asked for exists."
    EXPECTATION_FAILED = 417 "Expectation Failed" "417: an Expect other than 100-continue."
    HEADER_FIELDS_TOO_LARGE = 431 "Request Header Fields Too Large" "431: the head of the request is larger than allowed."
    INTERNAL_SERVER_ERROR = 500 "Internal Server Error" "500: a file could not be read."
    NOT_IMPLEMENTED = 501 "Not Implemented" "501: an unknown method or transfer coding."
    BAD_GATEWAY = 502 "Bad Gateway" "502: the origin could not be reached, or its answer is no good."
    SERVICE_UNAVAILABLE = 503 "Service Unavailable" "503: out of some resource for the moment."
    GATEWAY_TIMEOUT = 504 "Gateway Timeout" "504: the origin has not answered in time, or was not to be asked."
    VERSION_NOT_SUPPORTED = 505 "HTTP Version Not Supported" "505: neither HTTP/1.0 nor HTTP/1.1."
    LOOP_DETECTED = 508 "Loop Detected" "508: the request has come back to the proxy that forwarded it."
}
