//! Status codes (RFC 9110 §15).

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

impl Status {
    /// 200.
    pub const OK: Status = Status(200);
    /// 204: the answer to OPTIONS.
    pub const NO_CONTENT: Status = Status(204);
    /// 206: the ranges that were asked for.
    pub const PARTIAL_CONTENT: Status = Status(206);
    /// 301: a directory, named without its final slash.
    pub const MOVED_PERMANENTLY: Status = Status(301);
    /// 304: the client's copy is current.
    pub const NOT_MODIFIED: Status = Status(304);
    /// 400: no HTTP, or ambiguous.
    pub const BAD_REQUEST: Status = Status(400);
    /// 403: there, and not to be read.
    pub const FORBIDDEN: Status = Status(403);
    /// 404.
    pub const NOT_FOUND: Status = Status(404);
    /// 405: a method that files do not have.
    pub const METHOD_NOT_ALLOWED: Status = Status(405);
    /// 408: the request did not become complete in time.
    pub const REQUEST_TIMEOUT: Status = Status(408);
    /// 412: a precondition does not hold.
    pub const PRECONDITION_FAILED: Status = Status(412);
    /// 413: the content of the request is larger than allowed.
    pub const CONTENT_TOO_LARGE: Status = Status(413);
    /// 414: the target of the request is longer than allowed.
    pub const URI_TOO_LONG: Status = Status(414);
    /// 416: no range that was asked for exists.
    pub const RANGE_NOT_SATISFIABLE: Status = Status(416);
    /// 417: an Expect other than 100-continue.
    pub const EXPECTATION_FAILED: Status = Status(417);
    /// 431: the head of the request is larger than allowed.
    pub const HEADER_FIELDS_TOO_LARGE: Status = Status(431);
    /// 500: a file could not be read.
    pub const INTERNAL_SERVER_ERROR: Status = Status(500);
    /// 501: an unknown method or transfer coding.
    pub const NOT_IMPLEMENTED: Status = Status(501);
    /// 502: the origin could not be reached, or its answer is no good.
    pub const BAD_GATEWAY: Status = Status(502);
    /// 503: out of some resource for the moment.
    pub const SERVICE_UNAVAILABLE: Status = Status(503);
    /// 504: the origin has not answered in time, or was not to be asked.
    pub const GATEWAY_TIMEOUT: Status = Status(504);
    /// 508: the request has come back to the proxy that forwarded it.
    pub const LOOP_DETECTED: Status = Status(508);
    /// 505: neither HTTP/1.0 nor HTTP/1.1.
    pub const VERSION_NOT_SUPPORTED: Status = Status(505);

    /// Its reason phrase.
    pub fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            204 => "No Content",
            206 => "Partial Content",
            301 => "Moved Permanently",
            304 => "Not Modified",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            502 => "Bad Gateway",
            504 => "Gateway Timeout",
            508 => "Loop Detected",
            505 => "HTTP Version Not Supported",
            _ => "",
        }
    }
}
