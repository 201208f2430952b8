//! Samples by cgroup, unit, container and pod.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, perf, require, skip, text};

const ID: &str = "3f2a9c5de7b1a04c6f8e2d13b5a79c80e4d6f1a2b3c4d5e6f708192a3b4c5d6e";
const POD: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";

/// A cgroup in which a shell counts for some seconds at most; both go with this.
struct Group {
    path: PathBuf,
    parents: Vec<PathBuf>,
    child: Child,
}

impl Group {
    /// Makes the cgroup `name` below `top`, with what it is in.
    fn start(top: &Path, name: &str) -> std::io::Result<Group> {
        let mut parents = Vec::new();
        let mut path = top.to_owned();
        for part in name.split('/') {
            path.push(part);
            if !path.exists() {
                std::fs::create_dir(&path)?;
                parents.push(path.clone());
            }
        }
        let script = format!(
            "echo $$ > {}/cgroup.procs; i=0; while [ $i -lt 40000000 ]; do i=$((i+1)); done",
            path.display()
        );
        let mut shell = Command::new("sh");
        let child = shell
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let procs = path.join("cgroup.procs");
        while !std::fs::read_to_string(&procs)?.contains(&child.id().to_string()) {
            std::thread::yield_now();
        }
        Ok(Group { path, parents, child })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
        for folder in self.parents.iter().rev() {
            _ = std::fs::remove_dir(folder);
        }
    }
}

/// Where the unified hierarchy is mounted, if events belong to it.
fn hierarchy() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().rfind(|line| line.contains(" - cgroup2 ") && !line.contains(" ro,"))?;
    (!own.contains("perf_event")).then(|| PathBuf::from(mount.split(' ').nth(4).unwrap_or("/")))
}

/// A cgroup of a service, one of a container in a pod, and a recording of both.
fn recorded(test: &str, name: &str) -> Option<(Group, Group, PathBuf)> {
    require(test, &[Need::Perf, Need::Root])?;
    let Some(top) = hierarchy() else {
        skip(test, "the unified hierarchy of cgroups is not mounted, or has no events");
        return None;
    };
    let service = format!("kymo-test-{name}.slice/kymo-test-{name}.service");
    let container = format!("kymo-test-{name}.slice/kubepods/burstable/pod{POD}/{ID}");
    let groups = Group::start(&top, &service).and_then(|first| Ok((first, Group::start(&top, &container)?)));
    let (service, container) = match groups {
        Ok(groups) => groups,
        Err(error) => {
            skip(test, format!("no cgroup can be made in {}: {error}", top.display()));
            return None;
        }
    };
    let file = fresh_folder(&format!("cgroups-{name}")).join("perf.data");
    let options = ["record", "-a", "-e", "cpu-clock", "--all-cgroups", "-o", text(&file)];
    kymo().succeed([&options[..], &["--", "sleep", "0.3"]].concat());
    Some((service, container, file))
}

/// The lines of a report with these options, without heads: the share and what follows it.
fn report(tool: &crate::tools::Tool, file: &Path, options: &[&str]) -> Vec<(String, String)> {
    let all = ["report", "--stdio", "--no-children", "-g", "none", "-i", text(file)];
    let said = tool.succeed([&all[..], options].concat()).stdout;
    let lines = said.lines().filter(|line| !line.starts_with('#') && line.contains('%'));
    let mut rows: Vec<_> = lines
        .filter_map(|line| line.trim().split_once(' '))
        .map(|(share, rest)| (share.to_owned(), rest.trim().to_owned()))
        .collect();
    rows.sort();
    rows
}

/// Checks that rows by cgroup are perf's, that each container, unit and pod has its row, and that a recording by cgroup has
/// only what is in it.
#[test]
fn rows() {
    const TEST: &str = "cgroups::rows";
    let Some((service, container, file)) = recorded(TEST, "rows") else { return };
    assert_eq!(report(&kymo(), &file, &["-s", "cgroup"]), report(&perf(), &file, &["-s", "cgroup"]));
    let names = |key: &str| -> Vec<String> {
        report(&kymo(), &file, &["-s", key]).into_iter().map(|(_, name)| name).collect()
    };
    assert!(names("container").contains(&ID[..12].to_owned()), "{:?}", names("container"));
    assert!(names("pod").contains(&POD.to_owned()));
    assert!(names("unit").contains(&"kymo-test-rows.service".to_owned()));
    let of = |name: &str| report(&kymo(), &file, &["-s", "cgroup", "--cgroup-name", name]);
    let path = |group: &Group| {
        let text = group.path.display().to_string();
        text[text.find("/kymo-test-rows.slice").expect("its place")..].to_owned()
    };
    assert_eq!(of("kymo-test-rows")[0].1, path(&service));
    for name in [&ID[..12], POD, "/kymo-test-rows.slice/kubepods"] {
        let rows = of(name);
        assert_eq!(rows.iter().map(|row| &row.1).collect::<Vec<_>>(), [&path(&container)], "{name}");
    }
    let said = kymo().succeed(["report", "-i", text(&file), "--cgroup-name", "nosuch"]);
    said.prints("# no cgroup is called nosuch: the recording has ");
    for name in ["kymo-test-rows.slice/kymo-test-rows.service", "kymo-test-rows.service", &ID[..12]] {
        let alone = fresh_folder("cgroups-alone").join("perf.data");
        let options = ["record", "-e", "cpu-clock", "--all-cgroups", "-o", text(&alone), "-G", name];
        kymo().succeed([&options[..], &["--", "sleep", "0.2"]].concat());
        assert_eq!(report(&kymo(), &alone, &["-s", "cgroup"]).len(), 1, "{name}");
    }
}

/// Checks that the cgroups of a command are those that it was in, and what is said of a recording without any.
#[test]
fn commands() {
    const TEST: &str = "cgroups::commands";
    let Some(()) = require(TEST, &[Need::Root]) else { return };
    let Some(top) = hierarchy() else {
        return skip(TEST, "the unified hierarchy of cgroups is not mounted, or has no events");
    };
    let Ok(service) = Group::start(&top, "kymo-test-commands.service") else {
        return skip(TEST, format!("no cgroup can be made in {}", top.display()));
    };
    let file = fresh_folder("cgroups-commands").join("perf.data");
    let script = format!(
        "echo $$ > {}/cgroup.procs; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done",
        service.path.display()
    );
    let options = ["record", "-e", "cpu-clock:u", "--all-cgroups", "-o", text(&file), "--", "sh", "-c"];
    kymo().succeed([&options[..], &[&script]].concat());
    let units = report(&kymo(), &file, &["-s", "unit"]);
    assert!(units.iter().any(|row| row.1 == "kymo-test-commands.service"), "{units:?}");
    kymo().succeed(["record", "-e", "cpu-clock:u", "-o", text(&file), "--", "true"]);
    let said = kymo().run(["report", "-i", text(&file), "-s", "cgroup"]).ends(129);
    said.says("the recording has no cgroups of samples: record with `kymo record --all-cgroups`");
}
