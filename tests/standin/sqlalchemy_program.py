"""SQLAlchemy's asyncio extension over aiosqlite, unmodified: sessions, errors, cancellation."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import greenlet
import sqlalchemy
from sqlalchemy import ForeignKey, func, select
from sqlalchemy.exc import IntegrityError, MissingGreenlet, StatementError
from sqlalchemy.ext.asyncio import (
    AsyncAttrs,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

import pyfiber.greenlet

assert greenlet is pyfiber.greenlet


class Base(AsyncAttrs, DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    books: Mapped[list[Book]] = relationship(back_populates="author")


class Book(Base):
    __tablename__ = "book"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    author_id: Mapped[int] = mapped_column(ForeignKey("author.id"))
    author: Mapped[Author] = relationship(back_populates="books")


Sessions = async_sessionmaker[AsyncSession]


async def store(sessions: Sessions) -> None:
    """Inserts, with nested transactions that are rolled back."""
    async with sessions() as session, session.begin():
        for n in range(20):
            books = [Book(title=f"{n}.{i}") for i in range(3)]
            session.add(Author(name=f"author {n}", books=books))
        nested = await session.begin_nested()
        session.add(Author(name="never stored"))
        await session.flush()
        await nested.rollback()
    async with sessions() as session:
        assert await session.scalar(select(func.count(Author.id))) == 20
        assert await session.scalar(select(func.count(Book.id))) == 60


async def read(sessions: Sessions) -> None:
    """Eager, awaited and streamed loading; a lazy load outside of a greenlet is refused."""
    async with sessions() as session:
        query = select(Author).options(selectinload(Author.books)).order_by(Author.id)
        for author in await session.scalars(query):
            assert len(author.books) == 3
    async with sessions() as session:
        author = (await session.scalars(select(Author).limit(1))).one()
        assert len(await author.awaitable_attrs.books) == 3
        other = (await session.scalars(select(Author).offset(1).limit(1))).one()
        refused = None
        try:
            _ = other.books
        except StatementError as error:
            refused = error.orig
        assert isinstance(refused, MissingGreenlet)
        assert await session.run_sync(lambda _: len(other.books)) == 3
    async with sessions() as session:
        titles = [title async for title in await session.stream_scalars(select(Book.title))]
        assert len(titles) == 60


async def fail(sessions: Sessions) -> None:
    """A constraint raises where the flush was awaited, and the transaction is gone."""
    async with sessions() as session:
        session.add(Author(name="author 1"))
        try:
            await session.commit()
        except IntegrityError:
            await session.rollback()
        else:
            raise AssertionError("the constraint did not hold")
        assert await session.scalar(select(func.count(Author.id))) == 20


async def cancel(sessions: Sessions) -> None:
    """A task cancelled in the middle of a query leaves the pool usable."""

    async def endless() -> None:
        async with sessions() as session:
            while True:
                await session.scalars(select(Book))

    tasks = [asyncio.create_task(endless()) for _ in range(5)]
    await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(e, asyncio.CancelledError) for e in ended), ended
    async with sessions() as session:
        assert await session.scalar(select(func.count(Book.id))) == 60


async def together(sessions: Sessions) -> None:
    """Many sessions at once."""

    async def count(n: int) -> int:
        async with sessions() as session:
            query = select(Author).where(Author.name == f"author {n % 20}")
            author = (await session.scalars(query)).one()
            return len(await author.awaitable_attrs.books)

    assert await asyncio.gather(*[count(n) for n in range(100)]) == [3] * 100


async def main(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    for part in (store, read, fail, cancel, together):
        await asyncio.wait_for(part(sessions), 60)
    await engine.dispose()


with tempfile.TemporaryDirectory() as folder:
    url = f"sqlite+aiosqlite:///{Path(folder, 'test.db')}"
    asyncio.run(main(create_async_engine(url)))
print("SQLAlchemy", sqlalchemy.__version__, "works on", greenlet.__name__)
