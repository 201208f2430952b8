//! What can be probed, and that hits are counted as the program counts them.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::programs::build;
use crate::tools::{Need, kymo, ready, run};

/// The program whose functions are called a known number of times; none where nothing can be compiled.
fn probed(test: &str) -> Option<PathBuf> {
    ready(test, &[Need::Program("cc")]).then(|| build("probed.c", &[]))
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Checks that the list has the program's functions at the addresses of `nm`, its marker, and the same names as text and as JSON.
#[test]
fn list_of_a_program() {
    let Some(program) = probed("probe::list_of_a_program") else { return };
    let said = kymo().succeed(["list", "--probes", text(&program), "--json"]);
    let document: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((&document["schema"], &document["schema_version"]), (&"kymo-list-probes".into(), &1.into()));
    let probes = document["probes"].as_array().expect("a list");
    let named = |name: &str| probes.iter().find(|probe| probe["name"] == name);
    let nm = run(Command::new("nm").arg(&program)).stdout;
    let functions: Vec<(u64, &str)> = nm
        .lines()
        .filter_map(|line| {
            let (address, rest) = line.split_once(' ')?;
            let name = rest.strip_prefix("T probed_")?;
            Some((u64::from_str_radix(address, 16).ok()?, name))
        })
        .collect();
    assert_eq!(functions.len(), 5, "{nm}");
    for (address, name) in functions {
        let probe = named(&format!("probed_{name}")).unwrap_or_else(|| panic!("{name} in {}", said.stdout));
        assert_eq!((&probe["address"], &probe["kind"]), (&address.into(), &"function".into()));
        assert!(probe["length_bytes"].as_u64().is_some_and(|length| length > 0));
    }
    let marker = named("shop:sold").expect("the marker");
    assert!(marker["semaphore"].is_u64() && marker["kind"] == "marker", "{marker}");
    let shown = kymo().succeed(["list", "--probes", text(&program)]).stdout;
    assert_eq!(shown.lines().count(), probes.len());
}

/// Checks globs, selectors as filters, and a name that nothing matches.
#[test]
fn list_filters() {
    let Some(program) = probed("probe::list_filters") else { return };
    let names = |filter: &str| -> Vec<String> {
        let said = kymo().succeed(["list", "--probes", text(&program), filter]).stdout;
        let name = |line: &str| line.rsplit("  ").find(|part| !part.starts_with("usdt")).unwrap().to_owned();
        said.lines().map(name).collect()
    };
    assert_eq!(names("probed_?nner"), ["probed_inner"]);
    assert_eq!(names("probed_*").len(), 5);
    assert_eq!(names("shop:*"), ["shop:sold"]);
    assert_eq!(names("usdt:shop:sold"), ["shop:sold"]);
    let said = kymo().run(["list", "--probes", text(&program), "probed_iner"]);
    assert_eq!(said.code, Some(1));
    assert!(said.stderr.contains("did you mean `probed_inner`?"), "{}", said.stderr);
    let said = kymo().run(["list", "--probes", "/no/such/program"]);
    assert_eq!(said.code, Some(1));
    assert!(said.stderr.contains("cannot be probed: No such file"), "{}", said.stderr);
    let said = kymo().run(["list", "--probes", "/etc/passwd"]);
    assert!(said.stderr.contains("it is not an ELF file"), "{}", said.stderr);
}
