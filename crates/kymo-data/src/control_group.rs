//! What the path of a cgroup says: the unit of systemd, the container and the pod.
//!
//! Runtimes put the id of a container into the last names of a path, in one of two ways: as a name
//! of its own (driver `cgroupfs`), or in a scope of systemd (driver `systemd`):
//!
//! ```text
//!  /docker/ID                                    /system.slice/docker-ID.scope
//!  /kubepods/burstable/podUID/ID                 /kubepods.slice/../kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//!  /libpod_parent/libpod-ID                      /machine.slice/libpod-ID.scope/container
//! ```

/// A container's id has 64 hexadecimal digits.
const ID_DIGITS: usize = 64;
/// So many of them are shown, as `docker ps` does.
const SHOWN_DIGITS: usize = 12;
/// Kinds of units that processes can be in.
const UNITS: [&str; 2] = [".service", ".scope"];

/// What is known of a cgroup from its path. Of nested ones the innermost counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlGroup<'a> {
    /// The unit of systemd, such as `nginx.service`.
    pub unit: Option<&'a str>,
    /// The id of the container, or its name where the runtime uses names.
    pub container: Option<&'a str>,
    /// The unique id of the pod, with dashes or underscores as the driver writes it.
    pub pod: Option<&'a str>,
}

impl<'a> ControlGroup<'a> {
    /// Reads a path.
    pub fn of(path: &'a str) -> ControlGroup<'a> {
        let mut found = ControlGroup::default();
        let mut parent = "";
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if UNITS.iter().any(|kind| name.ends_with(kind)) {
                found.unit = Some(name);
            }
            if let Some(pod) = pod(name) {
                // A pod inside a container is another's.
                (found.pod, found.container) = (Some(pod), None);
            }
            found.container = container(name, parent).or(found.container);
            parent = name;
        }
        found
    }

    /// The container, shortened if it is an id.
    pub fn short_container(&self) -> Option<&'a str> {
        let container = self.container?;
        Some(if is_id(container) { &container[..SHOWN_DIGITS] } else { container })
    }

    /// The pod's unique id with dashes, as Kubernetes writes it.
    pub fn pod_id(&self) -> Option<String> {
        self.pod.map(|pod| pod.replace('_', "-"))
    }

    /// Whether `name` names it: its unit with or without the ending, its container by at least four
    /// digits of the id, or its pod.
    pub fn is_called(&self, name: &str) -> bool {
        let is_unit =
            |unit: &str| unit == name || UNITS.iter().any(|kind| unit.strip_suffix(kind) == Some(name));
        let is_container = |container: &str| {
            container == name || name.len() >= 4 && is_id(container) && container.starts_with(name)
        };
        self.unit.is_some_and(is_unit)
            || self.container.is_some_and(is_container)
            || self.pod_id().is_some_and(|pod| pod == name)
    }
}

/// The path that says most in `/proc/PID/cgroup`: there is a line for each hierarchy of version 1,
/// and `0::PATH` for that of version 2. Runtimes and systemd do not use the same ones.
///
/// ```
/// let text = "5:devices:/docker/web\n1:name=systemd:/system.slice/nginx.service\n0::/\n";
/// assert_eq!(kymo_data::cgroup_of_process(text), Some("/system.slice/nginx.service"));
/// ```
pub fn cgroup_of_process(text: &str) -> Option<&str> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let says = |path: &&str| {
        let group = ControlGroup::of(path);
        // The container is the smaller one; the slice of a login says less than either.
        (group.pod.is_some(), group.container.is_some(), group.unit.is_some(), *path != "/")
    };
    // The last one of several that say as much: that of systemd, and of version 2.
    paths.max_by_key(says)
}

/// Whether a path is that of a cgroup of this name, or of one in it.
pub fn is_in_cgroup(path: &str, name: &str) -> bool {
    let top = format!("/{}", name.trim_matches('/'));
    let below = path.strip_prefix(&top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    top == "/" || below || ControlGroup::of(path).is_called(name)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && is_hex(text)
}

/// The container that a name of a path is of.
fn container<'a>(name: &'a str, parent: &str) -> Option<&'a str> {
    if is_id(name) {
        return Some(name);
    }
    // `docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID`, `libpod-ID`; conmon watches a
    // container and is not in it.
    let stem = name.strip_suffix(".scope").unwrap_or(name);
    if let Some((runtime, id)) = stem.rsplit_once('-')
        && is_id(id)
    {
        return (!runtime.ends_with("conmon")).then_some(id);
    }
    // `cri-containerd:ID` of some releases.
    if let Some((_, id)) = stem.rsplit_once(':')
        && is_id(id)
    {
        return Some(id);
    }
    if let Some(name) = name.strip_prefix("lxc.payload.").or((parent == "lxc").then_some(name)) {
        return Some(name);
    }
    let machine = stem.strip_prefix("machine-").filter(|_| name.ends_with(".scope"));
    let nspawn = || name.strip_prefix("systemd-nspawn@")?.strip_suffix(".service");
    machine.or_else(nspawn)
}

/// The pod that a name of a path is of: `podUID`, `kubepods-burstable-podUID.slice`.
fn pod(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".slice").unwrap_or(name);
    let uid = match stem.strip_prefix("kubepods") {
        Some(rest) => &rest[rest.find("-pod")? + 4..],
        None => stem.strip_prefix("pod")?,
    };
    let digits: usize = uid.bytes().filter(|byte| !matches!(byte, b'-' | b'_')).count();
    // Those of static pods have no dashes.
    let is_uid = digits == 32 && uid.split(['-', '_']).all(is_hex);
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2a9c5de7b1a04c6f8e2d13b5a79c80e4d6f1a2b3c4d5e6f708192a3b4c5d6e";

    /// Paths as runtimes and systemd write them, with ID in the place of a container's id.
    const PATHS: &[(&str, &str, &str, &str)] = &[
        // path, unit, container, pod
        ("/", "", "", ""),
        ("/init.scope", "init.scope", "", ""),
        ("/system.slice/nginx.service", "nginx.service", "", ""),
        (
            "/system.slice/system-postgresql.slice/postgresql@15-main.service",
            "postgresql@15-main.service",
            "",
            "",
        ),
        ("/user.slice/user-1000.slice/session-2.scope", "session-2.scope", "", ""),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-firefox-4242.scope",
            "app-gnome-firefox-4242.scope",
            "",
            "",
        ),
        ("/system.slice/cron.service", "cron.service", "", ""),
        ("/docker/ID", "", "ID", ""),
        ("/system.slice/docker-ID.scope", "docker-ID.scope", "ID", ""),
        ("/system.slice/containerd.service", "containerd.service", "", ""),
        ("/system.slice/nerdctl-ID.scope", "nerdctl-ID.scope", "ID", ""),
        ("/default/ID", "", "ID", ""),
        ("/machine.slice/libpod-ID.scope", "libpod-ID.scope", "ID", ""),
        ("/machine.slice/libpod-ID.scope/container", "libpod-ID.scope", "ID", ""),
        ("/machine.slice/libpod-conmon-ID.scope", "libpod-conmon-ID.scope", "", ""),
        ("/libpod_parent/libpod-ID", "", "ID", ""),
        (
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
            "libpod-ID.scope",
            "ID",
            "",
        ),
        (
            "/kubepods/burstable/pod8dbc5577-d0e2-4706-8787-57d52c03ddf2/ID",
            "",
            "ID",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        (
            "/kubepods/pod8dbc5577-d0e2-4706-8787-57d52c03ddf2/ID",
            "",
            "ID",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8dbc5577_d0e2_4706_8787_57d52c03ddf2.slice/cri-containerd-ID.scope",
            "cri-containerd-ID.scope",
            "ID",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        (
            "/kubepods.slice/kubepods-pod8dbc5577_d0e2_4706_8787_57d52c03ddf2.slice/crio-ID.scope",
            "crio-ID.scope",
            "ID",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod8dbc5577_d0e2_4706_8787_57d52c03ddf2.slice/crio-conmon-ID.scope",
            "crio-conmon-ID.scope",
            "",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        (
            "/kubepods/burstable/pod05f0a9c4c4a6e1c2f1b3d5e7a9b1c3d5/ID",
            "",
            "ID",
            "05f0a9c4c4a6e1c2f1b3d5e7a9b1c3d5",
        ),
        (
            "/system.slice/containerd.service/kubepods-burstable-pod8dbc5577_d0e2_4706_8787_57d52c03ddf2.slice:cri-containerd:ID",
            "containerd.service",
            "ID",
            "",
        ),
        // kind: a node of Kubernetes in a container.
        (
            "/docker/0000000000000000000000000000000000000000000000000000000000000000/kubelet/kubepods/besteffort/pod8dbc5577-d0e2-4706-8787-57d52c03ddf2/ID",
            "",
            "ID",
            "8dbc5577-d0e2-4706-8787-57d52c03ddf2",
        ),
        ("/ecs/0f9de17a6465404e8b1e6d1e9c6ef2a4/ID", "", "ID", ""),
        ("/lxc/web", "", "web", ""),
        ("/lxc.payload.web/system.slice/nginx.service", "nginx.service", "web", ""),
        ("/machine.slice/machine-debian.scope", "machine-debian.scope", "debian", ""),
        (
            "/machine.slice/systemd-nspawn@debian.service/payload",
            "systemd-nspawn@debian.service",
            "debian",
            "",
        ),
        ("/kymo-123-0", "", "", ""),
        ("/podcast.slice/podcast.service", "podcast.service", "", ""),
    ];

    /// Checks unit, container and pod of paths as they are found on machines.
    #[test]
    fn real_paths() {
        for (path, unit, container, pod) in PATHS {
            let (path, unit) = (path.replace("ID", ID), unit.replace("ID", ID));
            let container = container.replace("ID", ID);
            let found = ControlGroup::of(&path);
            let pod_id = found.pod_id().unwrap_or_default();
            let got = (found.unit.unwrap_or(""), found.container.unwrap_or(""), pod_id.as_str());
            assert_eq!(got, (&*unit, &*container, *pod), "{path}");
        }
    }

    /// Checks which of the lines of a process is taken, on machines with version 1, with both, and
    /// with version 2; and that lines of another form, and hostile names, do no harm.
    #[test]
    fn lines_of_processes() {
        let docker = format!(
            "12:pids:/docker/{ID}\n9:cpuset:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n"
        );
        assert_eq!(cgroup_of_process(&docker), Some(&*format!("/docker/{ID}")));
        let hybrid = "12:freezer:/\n4:memory:/system.slice/ssh.service\n1:name=systemd:/system.slice/ssh.service\n0::/system.slice/ssh.service\n";
        assert_eq!(cgroup_of_process(hybrid), Some("/system.slice/ssh.service"));
        let pod = format!("/kubepods/burstable/pod8dbc5577-d0e2-4706-8787-57d52c03ddf2/{ID}");
        let kubernetes = format!("3:cpu,cpuacct:{pod}\n1:name=systemd:/system.slice/kubelet.service\n");
        assert_eq!(cgroup_of_process(&kubernetes), Some(&*pod));
        assert_eq!(
            cgroup_of_process("0::/user.slice/user-0.slice/session-1.scope\n"),
            Some("/user.slice/user-0.slice/session-1.scope")
        );
        assert_eq!(cgroup_of_process("0::/a:b::c\n"), Some("/a:b::c"));
        assert_eq!(cgroup_of_process("0::/\n"), Some("/"));
        for text in ["", "\n\n", "0", "0:", "::"] {
            let found = cgroup_of_process(text);
            assert!(found.is_none_or(str::is_empty), "{text:?}: {found:?}");
        }
    }

    /// Checks by which names a cgroup is found.
    #[test]
    fn names() {
        let docker = format!("/system.slice/docker-{ID}.scope");
        let is_in = is_in_cgroup;
        assert!(is_in(&docker, &ID[..12]) && is_in(&docker, ID) && is_in(&docker, "system.slice"));
        assert!(!is_in(&docker, &ID[..3]) && !is_in(&docker, "system") && !is_in(&docker, "docker"));
        let nginx = "/system.slice/nginx.service";
        assert!(
            is_in(nginx, "nginx")
                && is_in(nginx, "nginx.service")
                && is_in(nginx, nginx)
                && is_in(nginx, "/")
        );
        assert!(!is_in(nginx, "ngin"));
        assert_eq!(ControlGroup::of(&docker).short_container(), Some(&ID[..12]));
        assert_eq!(ControlGroup::of("/lxc/web").short_container(), Some("web"));
    }

    /// Checks that names of other scripts and bytes do not end it.
    #[test]
    fn odd_paths() {
        for path in
            ["", "//", "/é/pod", "/kubepods-pod", "/kubepods", "/-", "/.scope", "/machine-.scope", "relative"]
        {
            ControlGroup::of(path);
            is_in_cgroup(path, "é");
            is_in_cgroup(path, "");
        }
    }
}
