//! kymo-record from the outside: whole sessions, on a scripted kernel and on the real one.
mod common;
mod costs;
mod flight;
mod pid_filter;
mod pipeline;
mod real;
