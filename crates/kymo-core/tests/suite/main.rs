//! What can only be seen from outside: what the engines allocate.
mod allocations;
