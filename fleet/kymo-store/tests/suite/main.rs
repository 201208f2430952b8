//! Datasets in object stores, by the program as its users run it.
//!
//! | file | what it checks |
//! |---|---|
//! | `kills.rs` | writers, readers and compactors at once, of which the last are killed |
//! | `verbs.rs` | what compact, symbolize and add do and refuse |
//! | `fake_s3.rs` | a store that speaks S3, with short lists and lost answers |
//! | `minutes.rs` | what daemons write, and what readers count |

mod fake_s3;
mod kills;
mod minutes;
mod verbs;

use std::process::Command;

/// A place for a dataset, and the program with what it needs to reach it.
pub(crate) struct Place {
    pub(crate) url: String,
    endpoint: String,
}

impl Place {
    /// In the store that `KYMO_TEST_S3` names (`python3 -m ci.fleet.store` starts moto), else in one
    /// of this process.
    pub(crate) fn new(name: &str) -> Place {
        let endpoint = std::env::var("KYMO_TEST_S3").unwrap_or_else(|_| fake_s3::start());
        Place { url: format!("s3://kymo-test/{name}"), endpoint }
    }

    /// A program that reaches the store.
    pub(crate) fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.variables());
        command
    }

    /// The program of this crate.
    pub(crate) fn store(&self, words: &[&str]) -> Command {
        let mut command = self.command(std::path::Path::new(env!("CARGO_BIN_EXE_kymo-store")));
        command.args(words);
        command
    }

    /// What a client finds the store by.
    fn variables(&self) -> [(&'static str, &str); 5] {
        [
            ("AWS_ENDPOINT", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
        ]
    }

    /// The dataset, as this process reaches it.
    pub(crate) fn bucket(&self) -> kymo_store::Bucket {
        let settings = self.variables().map(|(name, value)| (name.to_owned(), value.to_owned()));
        kymo_store::Bucket::open_with(&self.url, settings.into()).expect("a bucket")
    }
}
