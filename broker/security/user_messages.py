"""Users and rules between the replicated state and the messages of the service Security."""

from __future__ import annotations

from dledger_wire._pb import security_pb2
from dledger_wire.errors import InvalidArgumentError
from dledger_wire.security.scram import ITERATIONS, MAX_ITERATIONS, SALT_BYTES, Verifier
from store.commands.security import Action, CopySecurity, Effect, Resource, Rule, User, UserSecret
from store.state.security import SecurityState

KEY_BYTES = 32


def user_of(message: security_pb2.SecurityUser) -> User:
    """InvalidArgumentError for a verifier that no client of ours makes."""
    if not message.HasField("verifier"):
        return User(message.name)
    found = message.verifier
    if len(found.salt) != SALT_BYTES or {len(found.stored_key), len(found.server_key)} != {KEY_BYTES}:
        raise InvalidArgumentError(f"user {message.name!r}: expected a verifier of SCRAM-SHA-256")
    if not ITERATIONS <= found.iterations <= MAX_ITERATIONS:
        raise InvalidArgumentError(f"user {message.name!r}: {found.iterations} iterations; expected {ITERATIONS} to {MAX_ITERATIONS}")
    return User(message.name, Verifier(found.salt, found.stored_key, found.server_key, found.iterations))


def shown_user(user: User, *, has_secret: bool = False) -> security_pb2.SecurityUser:
    """Without what checks its password and its signatures."""
    return security_pb2.SecurityUser(name=user.name, has_password=user.verifier is not None, has_secret=has_secret)


def _whole_user(user: User) -> security_pb2.SecurityUser:
    message = shown_user(user)
    if user.verifier is not None:
        found = user.verifier
        message.verifier.salt, message.verifier.stored_key, message.verifier.server_key = found.salt, found.stored_key, found.server_key
        message.verifier.iterations = found.iterations
    return message


def rule_of(message: security_pb2.SecurityRule) -> Rule:
    """InvalidArgumentError for words that are none of ours."""
    try:
        effect, resource, action = Effect(message.effect), Resource(message.resource), Action(message.action)
    except ValueError as error:
        raise InvalidArgumentError(f"rule of {message.user!r}: {error}") from None
    return Rule(message.user, effect, resource, message.pattern, action)


def shown_rule(rule: Rule) -> security_pb2.SecurityRule:
    """As it is."""
    return security_pb2.SecurityRule(
        user=rule.user, effect=rule.effect.value, resource=rule.resource.value, pattern=rule.pattern, action=rule.action.value
    )


def copy_of(state: SecurityState) -> security_pb2.SecurityCopy:
    """Everything, for members of the cluster."""
    users, rules = map(_whole_user, state.users()), map(shown_rule, state.rules())
    secrets = (security_pb2.UserSecret(name=each.name, secret=each.secret) for each in state.secrets())
    return security_pb2.SecurityCopy(version=state.version, users=users, rules=rules, secrets=secrets)


def command_of(message: security_pb2.SecurityCopy) -> CopySecurity:
    """The command that takes a copy over."""
    users, rules = tuple(map(user_of, message.users)), tuple(map(rule_of, message.rules))
    secrets = tuple(UserSecret(each.name, each.secret) for each in message.secrets)
    return CopySecurity(version=message.version, users=users, rules=rules, secrets=secrets)
