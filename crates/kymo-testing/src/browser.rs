//! A browser without a screen, which opens kymo's pages.
use crate::{BrowserTab, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A browser.
#[derive(Debug)]
pub struct Browser(PathBuf);

impl Browser {
    /// The one of this machine; `None`, with a loud line, where there is none.
    pub fn find(test: &str) -> Option<Browser> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let files = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
        let found = files.into_iter().find(|file| file.is_file());
        if found.is_none() {
            skip(test, "no chromium on this machine");
        }
        found.map(Browser)
    }

    /// Opens kymo's page at this address, in a window of this width and height.
    ///
    /// # Panics
    /// If the browser does not start, or shows no page of kymo's.
    pub fn open(&self, address: &str, size: (u32, u32)) -> BrowserTab {
        BrowserTab::open(&self.0, address, size)
    }

    /// The document at this address after the page has drawn itself, and has got what it asked for.
    /// `user`: an empty folder.
    ///
    /// # Panics
    /// If the browser does not start, or shows no page of kymo's.
    pub fn document(&self, address: &str, user: &Path) -> String {
        let output = Command::new(&self.0)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--window-size=1280,1000", "--timeout=60000", "--dump-dom"])
            // Of the page's own clock, which stands still while it waits for an answer.
            .args(address.starts_with("http:").then_some("--virtual-time-budget=5000"))
            .arg(format!("--user-data-dir={}", user.display()))
            .arg(address)
            .stdin(Stdio::null())
            .output()
            .expect("the browser starts");
        let document = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            document.contains("id=\"selfcheck\""),
            "no document from {}: {}",
            self.0.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        document
    }

    /// What the page in a document says that it computed: JSON.
    ///
    /// # Panics
    /// If it says nothing.
    pub fn self_check(document: &str) -> String {
        let (_, rest) = document.split_once("id=\"selfcheck\" hidden=\"\">").expect("the self-check element");
        let (text, _) = rest.split_once("</output>").expect("its end");
        text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    }
}
