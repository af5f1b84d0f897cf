"""The admin REST of a broker, in Pulsar's v2 paths and JSON.

Importing this package imports FastAPI, which takes most of a second: import it once the binary port listens.
"""

from anabranch.broker.admin.app import create_app
from anabranch.broker.admin.server import serve_admin

__all__ = ["create_app", "serve_admin"]
