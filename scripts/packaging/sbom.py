"""Print the bill of materials of a private environment, as CycloneDX 1.5: sbom.py SITE VERSION

All times and numbers follow from the contents, so that two builds print the same.
"""

import hashlib
import json
import os
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path

NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of URLs, RFC 4122


def component(found: Distribution, site: Path) -> dict[str, object]:
    """Describe one Python package: name, version, license, and the digest of its files."""
    name, version = found.metadata["Name"], found.version
    license_ = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    described: dict[str, object] = {
        "type": "application" if name == "fgsched" else "library",
        "bom-ref": f"pkg:pypi/{name.lower()}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower()}@{version}",
        "hashes": [{"alg": "SHA-256", "content": digest(found, site)}],
    }
    if license_ and len(license_) < 80:
        described["licenses"] = [{"license": {"name": license_}}]
    return described


def digest(found: Distribution, site: Path) -> str:
    """Return a digest of the metadata and the modules of a package, by path and content."""
    folder = Path(str(found._path))  # type: ignore[attr-defined]  # the public interface has no folder
    tops = [folder]
    listed = folder / "top_level.txt"
    names = listed.read_text().split() if listed.exists() else [found.metadata["Name"].replace("-", "_")]
    tops += [site / name for name in names]
    total = hashlib.sha256()
    for top in tops:
        for path in sorted(top.rglob("*")):
            if path.is_file():
                total.update(
                    f"{path.relative_to(site)}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
                )
    return total.hexdigest()


def main(site: Path, version: str) -> None:
    parts = [component(one, site) for one in distributions(path=[str(site)])]
    parts.sort(key=lambda part: str(part["purl"]).lower())
    own = next(part for part in parts if part["name"] == "fgsched")
    others = [part for part in parts if part is not own]
    when = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    text = json.dumps(parts, sort_keys=True)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, text)}",
        "version": 1,
        "metadata": {"timestamp": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own},
        "components": others,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in others]}],
    }
    print(json.dumps(document, indent=1))


main(Path(sys.argv[1]), sys.argv[2])
