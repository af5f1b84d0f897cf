"""Administration from Python. `anabranch.admin.blocking` has the same names for programs without an event loop."""

from __future__ import annotations

from anabranch.admin.admin import Admin as Admin
from anabranch.admin.admin import BrokerAdmin as BrokerAdmin
from anabranch.admin.admin import NamespaceAdmin as NamespaceAdmin
from anabranch.admin.admin import PolicyAdmin as PolicyAdmin
from anabranch.admin.admin import SchemaAdmin as SchemaAdmin
from anabranch.admin.admin import SubscriptionAdmin as SubscriptionAdmin
from anabranch.admin.admin import TenantAdmin as TenantAdmin
from anabranch.admin.admin import TopicAdmin as TopicAdmin
from anabranch.admin.admin import connect as connect
from anabranch.admin.figures import RegisteredSchema as RegisteredSchema
from anabranch.admin.figures import SegmentFigures as SegmentFigures
from anabranch.admin.figures import SubscriptionFigures as SubscriptionFigures
from anabranch.admin.figures import TopicFigures as TopicFigures
from anabranch.admin.rest import RestRefused as RestRefused
