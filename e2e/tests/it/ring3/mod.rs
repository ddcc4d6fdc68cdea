//! A real API server, nothing behind it but, in some tests, the controller.

mod controller;
mod drift;
mod validation;
