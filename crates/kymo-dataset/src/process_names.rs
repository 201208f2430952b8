//! What a process is in: container, pod and unit, by the path of its cgroup.
use kymo_data::ControlGroup;

/// What a process is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessNames {
    /// Its container: the first digits of the id, as `docker ps` shows it, or a name.
    pub container: Option<String>,
    /// Its pod of Kubernetes.
    pub pod: Option<String>,
    /// Its unit of systemd. The scope that a runtime makes for each container is none: its name is
    /// the id once more.
    pub systemd_unit: Option<String>,
}

impl ProcessNames {
    /// The names in the path of a cgroup.
    pub fn of_cgroup(path: &str) -> ProcessNames {
        let group = ControlGroup::of(path);
        let is_of_container = |unit: &&str| group.container.is_some_and(|container| unit.contains(container));
        ProcessNames {
            container: group.short_container().map(str::to_owned),
            pod: group.pod_id(),
            systemd_unit: group.unit.filter(|unit| !is_of_container(unit)).map(str::to_owned),
        }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == ProcessNames::default()
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessNames;

    const ID: &str = "3f2a9c5de7b1a04c6f8e2d13b5a79c80e4d6f1a2b3c4d5e6f708192a3b4c5d6e";

    /// Checks the names of paths as systemd, Docker, Podman, containerd and CRI-O make them, of
    /// both versions, and that a container's own scope is no unit.
    #[test]
    fn names_of_real_paths() {
        let pod = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
        let slice = format!("kubepods-burstable-pod{}.slice", pod.replace('-', "_"));
        for (path, container, in_pod, unit) in [
            ("/".into(), "", "", ""),
            ("/system.slice/nginx.service".into(), "", "", "nginx.service"),
            ("/user.slice/user-1000.slice/session-2.scope".into(), "", "", "session-2.scope"),
            (format!("/docker/{ID}"), "3f2a9c5de7b1", "", ""),
            (format!("/system.slice/docker-{ID}.scope"), "3f2a9c5de7b1", "", ""),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "3f2a9c5de7b1", "", ""),
            (format!("/kubepods/burstable/pod{pod}/{ID}"), "3f2a9c5de7b1", pod, ""),
            (
                format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope"),
                "3f2a9c5de7b1",
                pod,
                "",
            ),
            (format!("/kubepods.slice/{slice}/crio-{ID}.scope"), "3f2a9c5de7b1", pod, ""),
            ("/lxc.payload.web/system.slice/nginx.service".into(), "web", "", "nginx.service"),
        ] {
            let names = ProcessNames::of_cgroup(&path);
            let text = |name: &Option<String>| name.clone().unwrap_or_default();
            let found = (text(&names.container), text(&names.pod), text(&names.systemd_unit));
            assert_eq!(found, (container.into(), in_pod.into(), unit.into()), "{path}");
            assert_eq!(names.is_empty(), path == "/");
        }
    }
}
