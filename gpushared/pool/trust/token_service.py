"""Answer administrators' calls about tokens and the authority: the rest of ``PoolAdmin``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from gpushared.api.v1 import pool_pb2
from gpushared.domain.jobs.job import NodeName
from gpushared.domain.model.errors import NotFound, RequestError
from gpushared.domain.model.units import shown
from gpushared.pool.trust.callers import PoolCaller
from gpushared.pool.trust.token_records import ApiRecord, JoinRecord
from gpushared.pool.trust.trust import PoolTrust

log = logging.getLogger(__name__)


class TrustAdmin:
    """Each call is for administrators only; secrets are told once, to whoever had them made."""

    def __init__(self, trust: PoolTrust) -> None:
        self._trust = trust

    def handlers(self) -> Mapping[str, Any]:
        """Return the handlers by the names of the calls."""
        return {
            "CreateJoinToken": self.create_join_token,
            "ListJoinTokens": self.list_join_tokens,
            "CreateApiToken": self.create_api_token,
            "ListApiTokens": self.list_api_tokens,
            "RevokeToken": self.revoke_token,
            "RotateCa": self.rotate_ca,
            "Anchors": self.anchors,
        }

    async def create_join_token(
        self, message: pool_pb2.JoinTokenRequest, caller: PoolCaller
    ) -> pool_pb2.JoinToken:
        caller.require_admin()
        words, record = await self._trust.join_tokens.make(
            caller.owner.principal,
            self._trust.now(),
            node=message.node,
            realms=message.realms,
            valid_seconds=message.valid_seconds,
        )
        log.info("join token made id=%s node=%s by=%s", record.id, record.node, record.made_by)
        told = _join_token(record)
        told.token = str(words)
        return told

    async def list_join_tokens(
        self, _: pool_pb2.ListTokensRequest, caller: PoolCaller
    ) -> pool_pb2.ListJoinTokensResponse:
        caller.require_admin()
        records = await self._trust.join_tokens.all(self._trust.now())
        return pool_pb2.ListJoinTokensResponse(tokens=map(_join_token, records))

    async def create_api_token(
        self, message: pool_pb2.ApiTokenRequest, caller: PoolCaller
    ) -> pool_pb2.ApiToken:
        caller.require_admin()
        words, record = await self._trust.api_tokens.make(
            caller.owner.principal,
            self._trust.now(),
            person=message.person,
            scopes=message.scopes,
            valid_seconds=message.valid_seconds,
            description=message.description,
            admins=self._trust.people().admins,
        )
        log.info("API token made id=%s person=%s by=%s", record.id, record.person, record.made_by)
        told = _api_token(record)
        told.token = str(words)
        return told

    async def list_api_tokens(
        self, _: pool_pb2.ListTokensRequest, caller: PoolCaller
    ) -> pool_pb2.ListApiTokensResponse:
        caller.require_admin()
        records = await self._trust.api_tokens.all(self._trust.now())
        return pool_pb2.ListApiTokensResponse(tokens=map(_api_token, records))

    async def revoke_token(self, message: pool_pb2.TokenRef, caller: PoolCaller) -> pool_pb2.Revoked:
        """Revoke a token of either kind, as an id belongs to only one of them, or a node's certificates."""
        caller.require_admin()
        if bool(message.id) == bool(message.node):
            hint = "`gpushare pool tokens` lists tokens with their ids, `gpushare nodes` the nodes"
            raise RequestError("name a token or a node", hint=hint)
        if message.node:
            return await self._revoke_node(NodeName(message.node), caller)
        now = self._trust.now()
        for kind in (self._trust.api_tokens, self._trust.join_tokens):
            try:
                sentence = await kind.revoke(message.id, now)
            except NotFound:
                continue
            self._trust.standing.look_again(now)
            log.info("token revoked id=%s by=%s", message.id, caller.owner.principal)
            return pool_pb2.Revoked(sentence=sentence)
        raise NotFound(
            f"there is no token {shown(message.id)}", hint="`gpushare pool tokens` lists them with their ids"
        )

    async def _revoke_node(self, node: NodeName, caller: PoolCaller) -> pool_pb2.Revoked:
        await self._trust.enlisting.expel(node, caller.owner.principal)
        return pool_pb2.Revoked(
            sentence=f"the certificates of node {node} are revoked: it is cut off until it joins again with "
            f"a token for it; what runs there is kept until: gpushare node forget {node} --is-off"
        )

    async def rotate_ca(
        self, message: pool_pb2.RotateCaRequest, caller: PoolCaller
    ) -> pool_pb2.RotateCaAnswer:
        caller.require_admin()
        change = self._trust.finish_rotation if message.finish else self._trust.begin_rotation
        sentences = await change()
        log.warning("authority changed finish=%s by=%s", message.finish, caller.owner.principal)
        return pool_pb2.RotateCaAnswer(sentences=sentences)

    async def anchors(self, _: pool_pb2.GetTrustRequest, caller: PoolCaller) -> pool_pb2.Trust:
        """For programs that call the users' port: whom they are to trust. Nothing of it is secret."""
        caller.require_admin()
        authority = self._trust.authority
        return pool_pb2.Trust(
            pool=authority.pool,
            anchors=authority.anchors_pem,
            generation=authority.generation,
            now=self._trust.now(),
        )


def _join_token(record: JoinRecord) -> pool_pb2.JoinToken:
    return pool_pb2.JoinToken(
        id=record.id,
        expires_at=record.expires_at,
        node=record.node,
        used_by=record.used_by,
        realms=record.realms,
        created_at=record.created_at,
        used_at=record.used_at or 0.0,
        revoked=record.revoked_at is not None,
        made_by=record.made_by,
    )


def _api_token(record: ApiRecord) -> pool_pb2.ApiToken:
    return pool_pb2.ApiToken(
        id=record.id,
        person=record.person,
        scopes=record.scopes,
        expires_at=record.expires_at,
        created_at=record.created_at,
        used_at=record.used_at or 0.0,
        description=record.description,
        revoked=record.revoked_at is not None,
        made_by=record.made_by,
    )
