//! Counting on a kernel that follows a script.
