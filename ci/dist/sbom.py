"""The list of all packages that are in the program (SBOM), in the format of CycloneDX 1.5."""

import json
import tomllib
from datetime import datetime, timezone

from .build import TARGET, run


def components(source):
    """The packages that cargo compiles into the program, and which needs which. Tests and build scripts are left out."""
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={TARGET}"]
    metadata = json.loads(run(*command, cwd=source))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    program = next(id for id, package in packages.items() if package["name"] == "kymo")
    needs, waiting = {}, [program]
    while waiting:
        one = waiting.pop()
        if one in needs:
            continue
        normal = [dep for dep in nodes[one]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        needs[one] = [dep["pkg"] for dep in normal if not is_macro(packages[dep["pkg"]])]
        waiting += needs[one]
    return program, packages, needs


def is_macro(package):
    """Whether a package runs in the compiler only."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def reference(package):
    """The name of a package in the list: a package URL."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def describe(package, checksums):
    """A package as the format wants it."""
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    digest = checksums.get((package["name"], package["version"]))
    if digest:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return found


def write(path, source, date):
    """Writes the list of the program in a folder of sources."""
    lock = tomllib.loads((source / "Cargo.lock").read_text())
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    program, packages, needs = components(source)
    whole = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(date, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": describe(packages[program], checksums) | {"type": "application"},
        },
        "components": sorted(
            (describe(packages[one], checksums) for one in needs if one != program), key=lambda one: one["bom-ref"]
        ),
        "dependencies": sorted(
            (
                {"ref": reference(packages[one]), "dependsOn": sorted(reference(packages[dep]) for dep in deps)}
                for one, deps in needs.items()
            ),
            key=lambda one: one["ref"],
        ),
    }
    path.write_text(json.dumps(whole, indent=1) + "\n")
